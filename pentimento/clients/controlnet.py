"""Call the ControlNet service."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import grpc.aio

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.controlnet.v1.controlnet_service_pb2_grpc import ControlNetServiceStub
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.clients.calls import answer_of, judging_answers, stream
from pentimento.clients.step_stream import StepClient, StepStream
from pentimento.domain.errors import Aborted, InvalidArgument
from pentimento.domain.generation import Attempt, ControlNetSelection
from pentimento.tensors.chunks import reading_chunks
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ExpectedTensor
from pentimento.tensors.sending import transport_offer
from pentimento.wire.codec import nested
from pentimento.wire.tensors import Dtype, known_dtype, size_of

if TYPE_CHECKING:
    from pentimento.api.controlnet.v1.controlnet_service_pb2_grpc import ControlNetServiceAsyncStub

FULL_NAME = pb.DESCRIPTOR.services_by_name["ControlNetService"].full_name
# The binding of answers by a line; the stream's opening has the layers.
ANSWER_LAYER = "residuals"
# The largest answer: more than any network's residuals, less than a machine's memory.
MAX_RESIDUAL_BYTES = 1 << 30
MAX_LAYERS = 256


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
    def model_digest(self) -> str:
        """Return the digest of the base model."""
        return self.base_model_digest

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


class ResidualStream(StepStream):
    """Receive residuals by layer."""

    message = pb.StreamResidualsRequest
    other_end = "the ControlNet replica"
    gone_reason = "CONTROLNET_GONE"
    silent_reason = "CONTROLNET_SILENT"
    answer_field = "residuals"
    answer_layer = ANSWER_LAYER
    silent_after_s = 30.0

    _shapes: tuple[tuple[str, Dtype, tuple[int, ...]], ...] = ()

    def _opening(self, tensors: dict[str, tensor_pb.Tensor]) -> pb.StreamResidualsRequest:
        request: ResidualStreamRequest = self._request
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
        for name, tensor in tensors.items():
            getattr(message, name).CopyFrom(tensor)
        return pb.StreamResidualsRequest(open=message)

    def _accept(self, opened: pb.StreamOpened) -> None:
        if self._request.controlnet.digest not in ("", opened.controlnet_digest):
            raise Aborted("STALE_FRAME", "the stream was opened for another ControlNet than was asked for")
        self._answer_digest = opened.controlnet_digest
        with judging_answers():
            self._shapes = _shapes(opened)

    def _step(self, step_index: int, timestep: float, latent: tensor_pb.Tensor) -> pb.StreamResidualsRequest:
        step = pb.ResidualStep(step_index=step_index, timestep=timestep, latent=latent)
        return pb.StreamResidualsRequest(step=step)

    def _answered(self, step_index: int, answer: pb.Residuals) -> list[tensor_pb.Tensor]:
        if (answer.step_index, answer.stream_epoch, answer.last_part) != (step_index, self._epoch, True):
            raise Aborted("STALE_FRAME", f"residuals came that are not of step {step_index} of this stream")
        mid = [answer.mid_block_residual] if answer.HasField("mid_block_residual") else []
        return [*answer.down_block_residuals, *mid, *(block.residual for block in answer.block_residuals)]

    def _expected(self, step_index: int) -> list[ExpectedTensor]:
        return [
            ExpectedTensor(dtype, dims, self._binding(step_index, layer, self._answer_digest))
            for layer, dtype, dims in self._shapes
        ]


class ControlNetClient(StepClient[ResidualStream]):
    """Call a replica of the ControlNet service, with the options of `StepClient`."""

    stream = ResidualStream
    calls = staticmethod(residual_calls)

    @cached_property
    def _stub(self) -> "ControlNetServiceAsyncStub":
        return ControlNetServiceStub(self._channel)

    def watch_credits(self) -> AsyncGenerator[pb.WatchCreditsResponse, None]:
        """Yield the replica's credits and ControlNets, on each change and every second."""
        return stream(lambda: self._stub.WatchCredits(pb.WatchCreditsRequest()), lambda message: message)

    async def prefetch(self, names: Sequence[str], timeout_s: float | None = None) -> tuple[str, ...]:
        """Load ControlNets ahead of need; return the replica's loaded ones. Raises NotFound."""
        answer = await answer_of(self._stub.Prefetch, pb.PrefetchRequest(controlnets=names), timeout_s)
        return tuple(answer.resident_controlnets)

    async def status(self, timeout_s: float | None = None) -> pb.GetStatusResponse:
        """Return the replica's status message."""
        return await answer_of(self._stub.GetStatus, pb.GetStatusRequest(), timeout_s)


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
