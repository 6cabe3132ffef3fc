"""Call a peer worker that computes one half of the guidance."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import grpc.aio

from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub
from pentimento.clients.answered_stream import AnsweredStream
from pentimento.clients.lined_answers import LinedAnswers, MayBeLined
from pentimento.domain.errors import Aborted, PentimentoError, Unavailable
from pentimento.domain.generation import Attempt, ControlNetSelection, LoraSelection
from pentimento.tensors.lines import LineListener
from pentimento.tensors.negotiation import transport_offer
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ExpectedTensor, ReceivedTensors, TensorReceiver, open_receiver
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.sending import TensorSender
from pentimento.tensors.step_lines import open_asking_line
from pentimento.wire.codec import nested
from pentimento.wire.tensors import Binding

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HalfControlNet:
    """Describe a resolved ControlNet of a half, with its addresses; `encoded` is its condition as a latent of one row,
    for families with ControlNets on latents (SD3)."""

    selection: ControlNetSelection = field(repr=False)
    addresses: Sequence[str]
    encoded: OutgoingTensor | None = None


@dataclass(frozen=True)
class HalfStreamRequest:
    """Describe the opening of a stream of predictions for the unconditional half; `HalfStream` binds its tensors of one
    row."""

    attempt: Attempt
    model_digest: str
    width_px: int
    height_px: int
    step_count: int
    states: OutgoingTensor
    pooled: OutgoingTensor | None = None
    sizes: OutgoingTensor | None = None
    loras: Sequence[LoraSelection] = field(default=(), repr=False)
    controlnets: Sequence[HalfControlNet] = ()

    def tensors(self) -> list[tuple[str, OutgoingTensor]]:
        """Return the present tensors by field of the contract."""
        encoded = ((encoded_field(place), one.encoded) for place, one in enumerate(self.controlnets))
        named = (("text_states", self.states), ("pooled_states", self.pooled), ("time_ids", self.sizes), *encoded)
        return [(name, tensor) for name, tensor in named if tensor is not None]

    def controlnet_messages(self) -> list[pb.HalfControlNet]:
        """Return the ControlNets' messages of the opening, without tensors."""
        return [
            pb.HalfControlNet(
                controlnet=nested(one.selection, generation_pb2.ControlNetSelection), addresses=one.addresses
            )
            for one in self.controlnets
        ]


def encoded_field(place: int) -> str:
    """Return the binding of an encoded condition, by the index of its ControlNet."""
    return f"controlnets[{place}].encoded_conditioning"


def opening_tensor(message: pb.OpenHalf, name: str) -> tensor_pb.Tensor:
    """Return the tensor of an opening with the binding `name`."""
    places = {encoded_field(place): one for place, one in enumerate(message.controlnets)}
    found: tensor_pb.Tensor = places[name].encoded_conditioning if name in places else getattr(message, name)
    return found


class GuidanceHalfClient:
    """Call a peer.

    `directory`: folder of the shared memory, None for chunks. `lined`: send steps by lines through that memory if the
    peer supports it; `listener` reads their answers, by default the event loop."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        directory: RegionDirectory | None = None,
        lined: bool = True,
        listener: LineListener | None = None,
    ) -> None:
        self._stub = UnetWorkerServiceStub(channel)
        self._lined = lined
        self._listener = listener
        self._directory = directory

    async def open_stream(self, request: HalfStreamRequest, stream_epoch: int, timeout_s: float) -> "HalfStream":
        """Return an open stream. Raises the peer's error; Unavailable after a timeout."""
        call, directory = self._stub.PredictHalf(), self._directory
        stream = HalfStream(call, request, stream_epoch, directory, self._lined, self._listener)
        try:
            async with asyncio.timeout(timeout_s):
                await stream.open()
        except TimeoutError:
            stream.close()
            raise Unavailable("PEER_SILENT", "the peer did not open a stream in time") from None
        except BaseException:
            stream.close()
            raise
        return stream


class HalfStream(MayBeLined):
    """Send the latents of a step and receive its prediction, one step at a time; on the event loop only, except where a
    method says otherwise. Between processes of one host steps use a line if both ends could open it."""

    def __init__(
        self,
        call: "grpc.aio.StreamStreamCall[pb.PredictHalfRequest, pb.PredictHalfResponse]",
        request: HalfStreamRequest,
        stream_epoch: int,
        directory: RegionDirectory | None,
        lined: bool,
        listener: LineListener | None = None,
    ) -> None:
        self._listener = listener
        self._stream = AnsweredStream(call, "PEER_GONE", "the peer")
        self._request = request
        self._epoch = stream_epoch
        self._directory = directory
        self._sender = TensorSender()
        self._receiver = TensorReceiver()
        self._unread: tensor_pb.SharedMemoryAck | None = None
        self._may_be_lined = lined
        # Shape and type of a prediction: like the latents that were sent last.
        self._latent: OutgoingTensor | None = None
        # Called on the event loop when a prediction may have arrived by the line, or the line ended.
        self.heard: Callable[[], None] = lambda: None

    async def open(self) -> None:
        """Open the stream. Raises the peer's error; Aborted (STALE_FRAME) for another kind of answer."""
        request = self._request
        message = pb.OpenHalf(
            attempt=nested(request.attempt, generation_pb2.Attempt),
            model_digest=request.model_digest,
            transport=transport_offer(self._directory),
            half=pb.GUIDANCE_HALF_UNCONDITIONAL,
            width_px=request.width_px,
            height_px=request.height_px,
            step_count=request.step_count,
            loras=[nested(lora, generation_pb2.LoraSelection) for lora in request.loras],
            stream_epoch=self._epoch,
            controlnets=request.controlnet_messages(),
        )
        named = request.tensors()
        packed = self._sender.pack([replace(tensor, binding=self._binding(0, name)) for name, tensor in named])
        for (name, _), tensor in zip(named, packed.tensors, strict=True):
            opening_tensor(message, name).CopyFrom(tensor)
        await self._stream.send(pb.PredictHalfRequest(open=message))
        for chunk in packed.chunks:
            await self._stream.send(pb.PredictHalfRequest(chunk=chunk.message()))
        opened = (await self._stream.read("opened")).opened
        if opened.stream_epoch != self._epoch:
            raise Aborted("STALE_FRAME", f"the stream was opened for epoch {opened.stream_epoch}, not {self._epoch}")
        region = opened.region if opened.HasField("region") else None
        self._receiver, told = open_receiver(region, self._directory)
        if told is not None:
            await self._stream.send(pb.PredictHalfRequest(region_opened=told))
            if told.opened and opened.HasField("line") and self._may_be_lined:
                self._open_line(opened.line)

    async def predict(self, step_index: int, timestep: float, latent: OutgoingTensor) -> ReceivedTensors:
        """Return a step's prediction, shaped and typed as `latent`: `send`, then `receive`."""
        await self.send(step_index, timestep, latent)
        return await self.receive(step_index, latent)

    async def send(self, step_index: int, timestep: float, latent: OutgoingTensor) -> None:
        """Send a step's latents. Raises the error that ended the stream."""
        if self._line is not None:
            return self.send_now(step_index, timestep, latent)
        packed = self._sender.pack([replace(latent, binding=self._binding(step_index, "latent"))])
        if self._unread is not None:
            ack, self._unread = self._unread, None
            await self._stream.send(pb.PredictHalfRequest(ack=ack))
        step = pb.HalfStep(step_index=step_index, timestep=timestep, latent=packed.tensors[0])
        await self._stream.send(pb.PredictHalfRequest(step=step))
        for chunk in packed.chunks:
            await self._stream.send(pb.PredictHalfRequest(chunk=chunk.message()))

    def send_now(self, step_index: int, timestep: float, latent: OutgoingTensor) -> None:
        """Send like `send`, by the line and on any thread. Raises Unavailable if the line accepts nothing."""
        line, self._latent = self._line, latent
        if line is None:
            raise Unavailable("PEER_GONE", "this stream has no line")
        line.ask(step_index, timestep, latent, step_index)

    async def receive(self, step_index: int, latent: OutgoingTensor) -> ReceivedTensors:
        """Return the prediction of the sent step, with shape and type of `latent`. In shared memory it is valid until
        the next step is sent.

        Raises the error that ends the stream; Aborted (STALE_FRAME) for an answer to another step.
        """
        if self._line is not None:
            return await self._line.of(step_index)
        message = (await self._stream.read("prediction")).prediction
        if (message.step_index, message.stream_epoch) != (step_index, self._epoch):
            raise Aborted("STALE_FRAME", f"a prediction came that is not of step {step_index} of this stream")
        expected = ExpectedTensor(latent.dtype, latent.dims, self._binding(step_index, "prediction"))
        found = self._receiver.begin([message.prediction], [expected])
        while found is None:
            found = self._receiver.add((await self._stream.read("chunk")).chunk)
        self._unread = found.ack
        return found

    def close(self) -> None:
        """End the stream immediately."""
        line, self._line = self._line, None
        if line is not None:
            line.close()
        self._stream.cancel()
        self._receiver.close()

    def _open_line(self, told: tensor_pb.StepLine) -> None:
        """Open the line; without it steps use the stream."""
        assert self._directory is not None
        try:
            line = open_asking_line(
                told,
                self._directory,
                self._receiver,
                lambda step: self._binding(step, "latent"),
                lambda step: self._binding(step, "prediction"),
                self._expected,
            )
        except PentimentoError as error:
            logger.info("steps travel over gRPC instead of shared memory", extra={"reason": error.reason})
            return
        self._line = LinedAnswers(line, self._stream, lambda: self.heard(), self._listener)

    def _expected(self, step_index: int) -> list[ExpectedTensor]:
        assert self._latent is not None
        return [ExpectedTensor(self._latent.dtype, self._latent.dims, self._binding(step_index, "prediction"))]

    def _binding(self, step_index: int, layer: str) -> Binding:
        request = self._request
        attempt = request.attempt
        return Binding(attempt.request_id, attempt.fencing_token, step_index, layer, request.model_digest, self._epoch)
