"""Call the ControlNet service."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace

import grpc.aio

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.controlnet.v1.controlnet_service_pb2_grpc import ControlNetServiceStub
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.clients.answered_stream import AnsweredStream
from pentimento.clients.errors import domain_errors, judging_answers
from pentimento.clients.lined_answers import LinedAnswers, MayBeLined
from pentimento.domain.errors import Aborted, InvalidArgument, PentimentoError, Unavailable
from pentimento.domain.generation import Attempt, ControlNetSelection
from pentimento.tensors.chunk_frames import reading_chunks
from pentimento.tensors.lines import LineListener
from pentimento.tensors.negotiation import transport_offer
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ExpectedTensor, ReceivedTensors, TensorReceiver, open_receiver
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.sending import TensorSender
from pentimento.tensors.step_lines import open_asking_line
from pentimento.wire.codec import nested
from pentimento.wire.tensors import Binding, Dtype, known_dtype, size_of

logger = logging.getLogger(__name__)

FULL_NAME = pb.DESCRIPTOR.services_by_name["ControlNetService"].full_name
# The binding of answers by a line; the stream's opening has the layers.
ANSWER_LAYER = "residuals"
# The largest answer: more than any network's residuals, less than a machine's memory.
MAX_RESIDUAL_BYTES = 1 << 30
MAX_LAYERS = 256
# A replica without an answer by a line for this time is lost.
SILENT_AFTER_S = 30.0


@dataclass(frozen=True)
class ResidualStreamRequest:
    """Describe the opening of a stream of residuals; `ResidualStream` binds its tensors.

    `states` has a row per guidance half in the latents; a single one is conditional unless `unconditional`.
    `latent_dims` are (channels, height, width); `encoded` is the conditioning image as latents, for families with
    ControlNets on latents (SD3)."""

    attempt: Attempt
    controlnet: ControlNetSelection = field(repr=False)
    base_model_digest: str
    base_model_family: str
    width_px: int
    height_px: int
    step_count: int
    latent_dims: tuple[int, int, int]
    states: OutgoingTensor
    pooled: OutgoingTensor | None = None
    sizes: OutgoingTensor | None = None
    encoded: OutgoingTensor | None = None
    alone: bool = False
    unconditional: bool = False

    @property
    def guidance_mode(self) -> pb.GuidanceMode.ValueType:
        """Return which halves of the guidance the latents carry."""
        if self.states.dims[0] > 1:
            return pb.GUIDANCE_MODE_BOTH_HALVES
        return pb.GUIDANCE_MODE_UNCONDITIONAL_ONLY if self.unconditional else pb.GUIDANCE_MODE_CONDITIONAL_ONLY

    def tensors(self) -> list[tuple[str, OutgoingTensor]]:
        """Return the present tensors by field of the contract."""
        named = (
            ("text_states", self.states),
            ("pooled_states", self.pooled),
            ("time_ids", self.sizes),
            ("encoded_conditioning", self.encoded),
        )
        return [(name, tensor) for name, tensor in named if tensor is not None]


class ControlNetClient:
    """Call a replica of the ControlNet service.

    `directory`: folder of the shared memory, None for chunks. `lined`: send steps by lines through that memory if the
    replica supports it; `listener` reads their answers, by default the event loop."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        directory: RegionDirectory | None = None,
        lined: bool = True,
        listener: LineListener | None = None,
    ) -> None:
        self._stub = ControlNetServiceStub(channel)
        self._stream_residuals = residual_calls(channel)
        self._lined = lined
        self._listener = listener
        self._directory = directory

    async def watch_credits(self) -> AsyncGenerator[pb.WatchCreditsResponse, None]:
        """Yield the replica's credits and ControlNets, on each change and every second."""
        call = self._stub.WatchCredits(pb.WatchCreditsRequest())
        try:
            with domain_errors():
                async for message in call:
                    yield message
        finally:
            call.cancel()

    async def open_stream(
        self, request: ResidualStreamRequest, stream_epoch: int, timeout_s: float
    ) -> "ResidualStream":
        """Return an open stream. Raises the replica's error; Unavailable after a timeout."""
        call, directory = self._stream_residuals(), self._directory
        stream = ResidualStream(call, request, stream_epoch, directory, self._lined, self._listener)
        try:
            async with asyncio.timeout(timeout_s):
                await stream.open()
        except TimeoutError:
            stream.close()
            raise Unavailable("CONTROLNET_SILENT", "the ControlNet replica did not open a stream in time") from None
        except BaseException:
            stream.close()
            raise
        return stream

    async def prefetch(self, names: Sequence[str], timeout_s: float | None = None) -> tuple[str, ...]:
        """Load ControlNets ahead of need; return the replica's loaded ones. Raises NotFound."""
        with domain_errors():
            answer = await self._stub.Prefetch(pb.PrefetchRequest(controlnets=names), timeout=timeout_s)
        return tuple(answer.resident_controlnets)

    async def status(self, timeout_s: float | None = None) -> pb.GetStatusResponse:
        """Return the replica's status message."""
        with domain_errors():
            return await self._stub.GetStatus(pb.GetStatusRequest(), timeout=timeout_s)


def residual_calls(
    channel: grpc.aio.Channel,
) -> "grpc.aio.StreamStreamMultiCallable[pb.StreamResidualsRequest, pb.StreamResidualsResponse]":
    """Return the call of StreamResiduals, which parses chunks by hand: the stub's parser copies each four times."""
    answer = pb.StreamResidualsResponse
    return channel.stream_stream(
        f"/{FULL_NAME}/StreamResiduals",
        request_serializer=pb.StreamResidualsRequest.SerializeToString,
        response_deserializer=reading_chunks(answer.FromString, answer.CHUNK_FIELD_NUMBER),
    )


class ResidualStream(MayBeLined):
    """Send the latents of steps and receive their residuals, in the order of the steps; on the event loop only, except
    where a method says otherwise. A step may be sent while the previous one is running.

    Between processes of one host steps use a line if both ends could open it; errors arrive on the stream itself."""

    def __init__(
        self,
        call: "grpc.aio.StreamStreamCall[pb.StreamResidualsRequest, pb.StreamResidualsResponse]",
        request: ResidualStreamRequest,
        stream_epoch: int,
        directory: RegionDirectory | None,
        lined: bool = True,
        listener: LineListener | None = None,
    ) -> None:
        self._listener = listener
        self._stream = AnsweredStream(call, "CONTROLNET_GONE", "the ControlNet replica")
        self._request = request
        self._epoch = stream_epoch
        self._directory = directory
        self._sender = TensorSender()
        self._receiver = TensorReceiver()
        self._shapes: tuple[tuple[str, Dtype, tuple[int, ...]], ...] = ()
        self._digest = ""
        # Residuals received in slots, by step.
        self._held: dict[int, tensor_pb.SharedMemoryAck] = {}
        self._may_be_lined = lined
        # Called on the event loop when residuals may have arrived by the line, or the line ended.
        self.heard: Callable[[], None] = lambda: None

    async def open(self) -> None:
        """Open the stream. Raises the replica's error."""
        request = self._request
        message = pb.OpenStream(
            attempt=nested(request.attempt, generation_pb2.Attempt),
            controlnet=nested(request.controlnet, generation_pb2.ControlNetSelection),
            base_model_digest=request.base_model_digest,
            base_model_family=request.base_model_family,
            guidance_mode=request.guidance_mode,
            transport=transport_offer(self._directory),
            stream_epoch=self._epoch,
            width_px=request.width_px,
            height_px=request.height_px,
            step_count=request.step_count,
            controlnet_digest=request.controlnet.digest,
            latent_dims=request.latent_dims,
            alone=request.alone,
        )
        named = request.tensors()
        digest = request.base_model_digest
        packed = self._sender.pack([replace(tensor, binding=self._binding(0, name, digest)) for name, tensor in named])
        for (name, _), tensor in zip(named, packed.tensors, strict=True):
            getattr(message, name).CopyFrom(tensor)
        await self._stream.send(pb.StreamResidualsRequest(open=message))
        for chunk in packed.chunks:
            await self._stream.send(pb.StreamResidualsRequest(chunk=chunk.message()))
        await self._opened(await self._stream.read("opened"))

    async def residuals(self, step_index: int, timestep: float, latents: OutgoingTensor) -> ReceivedTensors:
        """Return a step's residuals by layer. Residuals in shared memory are valid until the next step is sent.

        Raises the error that ends the stream; Aborted (STALE_FRAME) for an answer to another step.
        """
        await self.ask(step_index, timestep, latents, step_index)
        return await self.take(step_index)

    async def ask(self, step_index: int, timestep: float, latents: OutgoingTensor, keeps_from: int) -> None:
        """Send a step's latents, one call at a time. Frees the memory of residuals of steps before `keeps_from`. Raises
        the error that ends the stream."""
        if self._line is not None:
            return self.ask_now(step_index, timestep, latents, keeps_from)
        binding = self._binding(step_index, "latent", self._request.base_model_digest)
        packed = self._sender.pack([replace(latents, binding=binding)])
        for ack in self._given_up(keeps_from):
            await self._stream.send(pb.StreamResidualsRequest(ack=ack))
        message = pb.ResidualStep(step_index=step_index, timestep=timestep, latent=packed.tensors[0])
        await self._stream.send(pb.StreamResidualsRequest(step=message))
        for chunk in packed.chunks:
            await self._stream.send(pb.StreamResidualsRequest(chunk=chunk.message()))

    def ask_now(self, step_index: int, timestep: float, latents: OutgoingTensor, keeps_from: int) -> None:
        """Send like `ask`, by the line and on any thread. Raises Unavailable if the line accepts nothing."""
        line = self._line
        if line is None:
            raise Unavailable("CONTROLNET_GONE", "this stream has no line")
        line.ask(step_index, timestep, latents, keeps_from)

    async def take(self, step_index: int) -> ReceivedTensors:
        """Return the residuals of the first sent step that is not taken yet, like `residuals`. One call at a time."""
        if self._line is not None:
            return await self._line.of(step_index)
        return await self._take(step_index, (await self._stream.read("residuals")).residuals)

    def close(self, *, in_order: bool = False) -> None:
        """End the stream immediately; `in_order`: no residuals are in use or running."""
        line, self._line = self._line, None
        if line is not None:
            in_order = in_order and line.idle
            line.close()
        self._stream.cancel()
        self._receiver.close(self._directory.kept if in_order and self._directory is not None else None)

    def _given_up(self, keeps_from: int) -> list[tensor_pb.SharedMemoryAck]:
        return [self._held.pop(step) for step in list(self._held) if step < keeps_from]

    def _binding(self, step_index: int, layer: str, digest: str) -> Binding:
        attempt = self._request.attempt
        return Binding(attempt.request_id, attempt.fencing_token, step_index, layer, digest, self._epoch)

    async def _opened(self, message: pb.StreamResidualsResponse) -> None:
        opened = message.opened
        if opened.stream_epoch != self._epoch:
            raise Aborted("STALE_FRAME", f"the stream was opened for epoch {opened.stream_epoch}, not {self._epoch}")
        if self._request.controlnet.digest not in ("", opened.controlnet_digest):
            raise Aborted("STALE_FRAME", "the stream was opened for another ControlNet than was asked for")
        self._digest = opened.controlnet_digest
        with judging_answers():
            self._shapes = _shapes(opened)
        region = opened.region if opened.HasField("region") else None
        # Touching all pages takes milliseconds for a large region: not on the event loop.
        self._receiver, told = await asyncio.to_thread(open_receiver, region, self._directory)
        if told is not None:
            await self._stream.send(pb.StreamResidualsRequest(region_opened=told))
            if told.opened and opened.HasField("line") and self._may_be_lined:
                self._open_line(opened.line)

    def _open_line(self, told: tensor_pb.StepLine) -> None:
        """Open the line; without it steps use the stream."""
        assert self._directory is not None
        base = self._request.base_model_digest
        try:
            line = open_asking_line(
                told,
                self._directory,
                self._receiver,
                lambda step: self._binding(step, "latent", base),
                lambda step: self._binding(step, ANSWER_LAYER, self._digest),
                self._expected,
            )
        except PentimentoError as error:
            logger.info("steps travel over gRPC instead of shared memory", extra={"reason": error.reason})
            return
        self._line = LinedAnswers(line, self._stream, lambda: self.heard(), self._listener, SILENT_AFTER_S)

    def _expected(self, step_index: int) -> list[ExpectedTensor]:
        return [
            ExpectedTensor(dtype, dims, self._binding(step_index, layer, self._digest))
            for layer, dtype, dims in self._shapes
        ]

    async def _take(self, step_index: int, residuals: pb.Residuals) -> ReceivedTensors:
        if (residuals.step_index, residuals.stream_epoch, residuals.last_part) != (step_index, self._epoch, True):
            raise Aborted("STALE_FRAME", f"residuals came that are not of step {step_index} of this stream")
        tensors = [*residuals.down_block_residuals]
        if residuals.HasField("mid_block_residual"):
            tensors.append(residuals.mid_block_residual)
        tensors += [block.residual for block in residuals.block_residuals]
        with judging_answers():
            found = self._receiver.begin(tensors, self._expected(step_index))
        while found is None:
            message = await self._stream.read("chunk")
            with judging_answers():
                found = self._receiver.add(message.chunk)
        if found.ack is not None:
            self._held[step_index] = found.ack
        return found


def _shapes(opened: pb.StreamOpened) -> tuple[tuple[str, Dtype, tuple[int, ...]], ...]:
    """Return the expected tensors of each answer. Raises InvalidArgument for more than any network has, and for an
    unknown element type."""
    told = opened.shapes[: MAX_LAYERS + 1]
    shapes = tuple((shape.layer, known_dtype(shape.dtype, list(Dtype)), tuple(shape.dims)) for shape in told)
    total = sum(size_of(dtype, dims) for _, dtype, dims in shapes)
    if not 1 <= len(shapes) <= MAX_LAYERS or total > MAX_RESIDUAL_BYTES:
        limit = f"must be 1 to {MAX_LAYERS} layers, {MAX_RESIDUAL_BYTES} bytes at most"
        raise InvalidArgument.of("opened.shapes", f"{limit}, got {len(opened.shapes)} of {total}")
    return shapes
