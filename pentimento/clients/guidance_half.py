"""Call a peer worker that computes one half of the guidance."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc.aio

from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub
from pentimento.clients.step_stream import StepClient, StepStream
from pentimento.domain.errors import Aborted
from pentimento.domain.generation import Attempt, ControlNetSelection, LoraSelection
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ExpectedTensor
from pentimento.tensors.sending import transport_offer
from pentimento.wire.codec import nested


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


class HalfStream(StepStream):
    """Receive predictions, one step at a time; each has shape and type of the latents that were sent last."""

    message = pb.PredictHalfRequest
    other_end = "the peer"
    gone_reason = "PEER_GONE"
    silent_reason = "PEER_SILENT"
    answer_field = "prediction"
    answer_layer = "prediction"
    silent_after_s = 60.0

    def _opening(self, tensors: dict[str, tensor_pb.Tensor]) -> pb.PredictHalfRequest:
        request: HalfStreamRequest = self._request
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
        for name, tensor in tensors.items():
            opening_tensor(message, name).CopyFrom(tensor)
        return pb.PredictHalfRequest(open=message)

    def _accept(self, opened: pb.HalfOpened) -> None:
        """Accept any: the model is in the binding of each prediction."""

    def _step(self, step_index: int, timestep: float, latent: tensor_pb.Tensor) -> pb.PredictHalfRequest:
        return pb.PredictHalfRequest(step=pb.HalfStep(step_index=step_index, timestep=timestep, latent=latent))

    def _answered(self, step_index: int, answer: pb.HalfPrediction) -> list[tensor_pb.Tensor]:
        if (answer.step_index, answer.stream_epoch) != (step_index, self._epoch):
            raise Aborted("STALE_FRAME", f"a prediction came that is not of step {step_index} of this stream")
        return [answer.prediction]

    def _expected(self, step_index: int) -> list[ExpectedTensor]:
        assert self._latents is not None
        binding = self._binding(step_index, self.answer_layer, self._answer_digest)
        return [ExpectedTensor(self._latents.dtype, self._latents.dims, binding)]


def half_calls(
    channel: grpc.aio.Channel,
) -> "grpc.aio.StreamStreamMultiCallable[pb.PredictHalfRequest, pb.PredictHalfResponse]":
    """Return the call of PredictHalf."""
    return UnetWorkerServiceStub(channel).PredictHalf


class GuidanceHalfClient(StepClient[HalfStream]):
    """Call a peer, with the options of `StepClient`."""

    stream = HalfStream
    calls = staticmethod(half_calls)
