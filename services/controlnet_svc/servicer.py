"""Serve pentimento.api.controlnet.v1 with the ControlNets. A message's values are accepted only if its stream expects
them."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc.aio
from torch import Tensor

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.controlnet.v1.controlnet_service_pb2_grpc import ControlNetServiceServicer
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.clients.controlnet import ANSWER_LAYER
from pentimento.diffusion.families.model import Conditioning
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Attempt, ControlNetSelection
from pentimento.service.credits import CreditNews
from pentimento.tensors.cuda import WIRE_DTYPES, outgoing_tensor, tensor_over
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ExpectedTensor, TensorReceiver, receive_all
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.sending import transport_of
from pentimento.tensors.step_lines import MAX_UNDER_WAY
from pentimento.tensors.step_server import StepService, opening_of, serve_steps
from pentimento.wire.codec import decode
from pentimento.wire.tensors import Binding, Dtype, checked_description, size_of
from services.controlnet_svc.networks import ShelvedNetwork
from services.controlnet_svc.streams import ControlNets, OpenedStream, StreamOrder

FULL_NAME = pb.DESCRIPTOR.services_by_name["ControlNetService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]
Requests = AsyncIterator[pb.StreamResidualsRequest]
# Converts a residual to its outgoing form.
Outgoing = Callable[[Tensor, Binding], OutgoingTensor]
FLOATS = (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16)
# Limit for all tensors of an opening message: SD3's text states and a condition's latents take a few MiB.
MAX_OPENING_BYTES = 64 << 20
MAX_LATENT_BYTES = 64 << 20
_ROWS = {pb.GUIDANCE_MODE_BOTH_HALVES: 2, pb.GUIDANCE_MODE_CONDITIONAL_ONLY: 1, pb.GUIDANCE_MODE_UNCONDITIONAL_ONLY: 1}


class ControlNetServicer(ControlNetServiceServicer):
    """Serve streams of residuals. `directory` holds the memory shared with workers of this host; None: no sharing."""

    def __init__(
        self,
        controlnets: ControlNets,
        news: CreditNews,
        directory: RegionDirectory | None,
        instance_id: str,
        outgoing: Outgoing = outgoing_tensor,
    ) -> None:
        self._outgoing = outgoing
        self._controlnets = controlnets
        self._news = news
        self._directory = directory
        self._instance_id = instance_id

    async def WatchCredits(
        self, request: pb.WatchCreditsRequest, context: Context
    ) -> AsyncIterator[pb.WatchCreditsResponse]:
        async with aclosing(self._news.beats()) as beats:
            async for _ in beats:
                yield pb.WatchCreditsResponse(
                    instance_id=self._instance_id,
                    credit_count=self._controlnets.credit_count,
                    open_stream_count=self._controlnets.open_count,
                    draining=self._controlnets.draining,
                    controlnets=self._infos(),
                )

    async def StreamResiduals(self, request: Requests, context: Context) -> AsyncIterator[pb.StreamResidualsResponse]:
        opening = await opening_of(request)
        order = await _received_order(opening, request)
        async with self._controlnets.opened(order) as stream:
            service = self._service(opening, stream)
            async with aclosing(serve_steps(request, opening.transport, self._directory, service)) as answers:
                async for answer in answers:
                    yield answer

    def _service(self, opening: pb.OpenStream, stream: OpenedStream) -> StepService:
        order = stream.order
        latent_dtype, _ = checked_description(opening.text_states, FLOATS, None, None)
        latents = (order.row_count, *order.latent_dims)
        return StepService(
            step_count=order.step_count,
            latents=ExpectedTensor(latent_dtype, latents, _binding(opening, "latent", order.base_model_digest)),
            answer=_binding(opening, ANSWER_LAYER, stream.digest),
            answer_sizes=[size_of(WIRE_DTYPES[stream.dtype], layer.dims) for layer in stream.layers],
            submit=stream.submit,
            outgoing=self._outgoing,
            listener=stream.listener,
            most_under_way=MAX_UNDER_WAY,
            opened=partial(_opened, opening, stream),
            answered=partial(_residuals, opening.stream_epoch),
            chunk_field=pb.StreamResidualsResponse.CHUNK_FIELD_NUMBER,
            keeps_regions=True,
        )

    async def Prefetch(self, request: pb.PrefetchRequest, context: Context) -> pb.PrefetchResponse:
        await self._controlnets.shelf.prefetch(request.controlnets)
        return pb.PrefetchResponse(resident_controlnets=self._controlnets.shelf.resident)

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        controlnets = self._controlnets
        return pb.GetStatusResponse(
            instance_id=self._instance_id,
            controlnets=self._infos(),
            open_stream_count=controlnets.open_count,
            step_count=controlnets.compute.step_count,
            draining=controlnets.draining,
            credit_count=controlnets.credit_count,
            load_count=controlnets.shelf.load_count,
            eviction_count=controlnets.shelf.eviction_count,
        )

    def _infos(self) -> list[pb.ControlNetInfo]:
        resident = set(self._controlnets.shelf.resident)
        return [_info(shelved, resident) for shelved in self._controlnets.shelf.networks]


def _info(shelved: ShelvedNetwork, resident: set[str]) -> pb.ControlNetInfo:
    adapter = shelved.adapter
    return pb.ControlNetInfo(
        name=adapter.name,
        digest=adapter.digest,
        family=adapter.family,
        resident=adapter.name in resident,
        memory_bytes=shelved.memory_bytes,
        takes_latents=shelved.takes_latents,
        unshifted=shelved.unshifted,
    )


def _binding(message: pb.OpenStream, layer: str, digest: str) -> Binding:
    attempt = message.attempt
    return Binding(attempt.request_id, attempt.fencing_token, 0, layer, digest, message.stream_epoch)


async def _received_order(message: pb.OpenStream, messages: Requests) -> StreamOrder:
    rows = _ROWS.get(message.guidance_mode, 0)
    if not rows:
        raise InvalidArgument.of("open.guidance_mode", "must say which halves of guidance the latents carry")
    return _order(message, rows, await _receive_opening(message, messages))


async def _receive_opening(message: pb.OpenStream, messages: Requests) -> dict[str, Tensor]:
    """Return the message's tensors, by field. The caller chooses their dims: only their total size is bounded."""
    names = ["text_states"]
    names += [name for name in ("pooled_states", "time_ids", "encoded_conditioning") if message.HasField(name)]
    parts = [getattr(message, name) for name in names]
    expected = []
    for name, part in zip(names, parts, strict=True):
        dtype, _ = checked_description(part, FLOATS, None, None)
        binding = _binding(message, name, message.base_model_digest)
        expected.append(ExpectedTensor(dtype, tuple(part.dims), binding))
    if sum(size_of(wanted.dtype, wanted.dims) for wanted in expected) > MAX_OPENING_BYTES:
        raise InvalidArgument.of("open", f"must bring at most {MAX_OPENING_BYTES} bytes of tensors")
    found = await receive_all(TensorReceiver(), parts, expected, messages)
    return {name: tensor_over(wire) for name, wire in zip(names, found.tensors, strict=True)}


def _order(message: pb.OpenStream, rows: int, tensors: dict[str, Tensor]) -> StreamOrder:
    for name, rank in (("text_states", 3), ("pooled_states", 2), ("time_ids", 2)):
        tensor = tensors.get(name)
        if tensor is not None and (tensor.ndim != rank or tensor.shape[0] != rows or not tensor.numel()):
            limit = f"must have {rank} dims, {rows} rows"
            raise InvalidArgument.of(f"open.{name}", f"{limit}, got {list(tensor.shape)}")
    encoded = tensors.get("encoded_conditioning")
    if encoded is not None and (encoded.ndim != 4 or encoded.shape[0] not in (1, rows)):
        raise InvalidArgument.of("open.encoded_conditioning", f"must have 4 dims, 1 or {rows} rows")
    dims = message.latent_dims
    if len(dims) != 3 or not all(dims) or size_of(Dtype.FLOAT32, (rows, *dims)) > MAX_LATENT_BYTES:
        raise InvalidArgument.of("open.latent_dims", f"must be channels, height and width, got {list(dims)[:8]}")
    return StreamOrder(
        attempt=decode(message.attempt, Attempt, "attempt"),
        controlnet=decode(message.controlnet, ControlNetSelection, "controlnet"),
        base_model_digest=message.base_model_digest,
        base_model_family=message.base_model_family,
        controlnet_digest=message.controlnet_digest,
        conditioning=Conditioning(tensors["text_states"], tensors.get("pooled_states"), tensors.get("time_ids")),
        width_px=message.width_px,
        height_px=message.height_px,
        step_count=message.step_count,
        latent_dims=(dims[0], dims[1], dims[2]),
        encoded=encoded,
        alone=message.alone,
    )


def _opened(
    opening: pb.OpenStream,
    stream: OpenedStream,
    region: tensor_pb.SharedMemoryRegion | None,
    line: tensor_pb.StepLine | None,
) -> pb.StreamResidualsResponse:
    dtype = tensor_pb.Dtype.ValueType(WIRE_DTYPES[stream.dtype].value)
    message = pb.StreamOpened(
        controlnet_digest=stream.digest,
        transport=transport_of(region),
        stream_epoch=opening.stream_epoch,
        shapes=[pb.ResidualShape(layer=layer.layer, dtype=dtype, dims=layer.dims) for layer in stream.layers],
        region=region,
        line=line,
    )
    return pb.StreamResidualsResponse(opened=message)


def _residuals(stream_epoch: int, step_index: int, tensors: Sequence[tensor_pb.Tensor]) -> pb.StreamResidualsResponse:
    message = pb.Residuals(step_index=step_index, stream_epoch=stream_epoch, last_part=True)
    for tensor in tensors:
        layer = tensor.binding.layer
        if layer == "mid_block":
            message.mid_block_residual.CopyFrom(tensor)
        elif layer.startswith("down_block_"):
            message.down_block_residuals.append(tensor)
        else:
            block = pb.BlockResidual(block_index=int(layer.removeprefix("block_")), residual=tensor)
            message.block_residuals.append(block)
    return pb.StreamResidualsResponse(residuals=message)
