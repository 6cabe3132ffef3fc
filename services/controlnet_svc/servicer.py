"""Serve pentimento.api.controlnet.v1 with the ControlNets. A message's values are accepted only if its stream expects
them."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, cast

import grpc.aio
from torch import Tensor

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.controlnet.v1.controlnet_service_pb2_grpc import ControlNetServiceServicer
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.diffusion.families.model import Conditioning, ControlResiduals
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Attempt, ControlNetSelection
from pentimento.service.credits import CreditNews
from pentimento.tensors.device import WIRE_DTYPES, outgoing_tensor, tensor_over
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ExpectedTensor, TensorReceiver, receive_all
from pentimento.tensors.regions import KeptRegions, RegionDirectory
from pentimento.tensors.sending import PackedTensors, TensorSender, open_sender, transport_of
from pentimento.tensors.step_lines import make_answering_line
from pentimento.wire.codec import decode
from pentimento.wire.tensors import Binding, Dtype, checked_description, size_of
from services.controlnet_svc.networks import ShelvedNetwork
from services.controlnet_svc.streams import (
    ANSWER_LAYER,
    ControlNets,
    LinedResiduals,
    OpenedStream,
    StreamOrder,
    named_tensors,
)

T = TypeVar("T")


async def one_ahead(source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield the items of `source`, which prepares each next item before the consumer is done with this one, and is
    closed at the end. Its errors are raised after the items before."""
    upcoming = asyncio.create_task(anext(source, None))
    try:
        while (item := await upcoming) is not None:
            upcoming = asyncio.create_task(anext(source, None))
            yield item
    finally:
        upcoming.cancel()
        # Errors of the source after the consumer has left are dropped.
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await upcoming
        await source.aclose()


FULL_NAME = pb.DESCRIPTOR.services_by_name["ControlNetService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]
Requests = AsyncIterator[pb.StreamResidualsRequest]
# Converts a residual to its outgoing form.
Outgoing = Callable[[Tensor, Binding], OutgoingTensor]
FLOATS = (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16)
# Limit for all tensors of an opening message: SD3's text states and a condition's latents take a few MiB.
MAX_OPENING_BYTES = 64 << 20
MAX_LATENT_BYTES = 64 << 20
_ROWS = {
    pb.GUIDANCE_MODE_BOTH_HALVES: 2,
    pb.GUIDANCE_MODE_CONDITIONAL_ONLY: 1,
    pb.GUIDANCE_MODE_UNCONDITIONAL_ONLY: 1,
}


class ControlNetServicer(ControlNetServiceServicer):
    """Serve streams of residuals. `directory` holds the memory shared with workers of this host, None for no sharing.
    `residual_parts`: send a transformer's residuals by lines in parts."""

    def __init__(
        self,
        controlnets: ControlNets,
        news: CreditNews,
        directory: RegionDirectory | None,
        instance_id: str,
        outgoing: Outgoing = outgoing_tensor,
        *,
        residual_parts: bool = True,
    ) -> None:
        self._outgoing = outgoing
        self._residual_parts = residual_parts
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
        opening = await _Opening.read(request)
        async with self._controlnets.opened(opening.order) as stream:
            sizes = [size_of(WIRE_DTYPES[stream.dtype], layer.dims) for layer in stream.layers]
            offer = opening.message.transport
            sender, region = await asyncio.to_thread(open_sender, offer, self._directory, sizes)
            conversation = _Conversation(opening, stream, sender, self._outgoing)
            line, told = make_answering_line(self._directory, sender, conversation.latent, conversation.answer)
            lined = None
            if line is not None:
                lined = LinedResiduals(line, stream, self._outgoing, in_parts=self._residual_parts)
            try:
                yield conversation.opened(region, told)
                messages = request if lined is None else lined.steps.until_failed(request)
                async with aclosing(conversation.answers(messages)) as answers:
                    async for answer in answers:
                        yield answer
            finally:
                if lined is not None:
                    lined.steps.close()
                sender.close(self._kept_after(stream))

    def _kept_after(self, stream: OpenedStream) -> KeptRegions | None:
        """Return the store for an ended stream's region; None while a step may still be written to it."""
        return None if self._directory is None or stream.under_way_count else self._directory.kept

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


class _Opening:
    """Hold the first message of a stream, with its tensors."""

    def __init__(self, message: pb.OpenStream, order: StreamOrder) -> None:
        self.message = message
        self.order = order

    def binding(self, step_index: int, layer: str, digest: str) -> Binding:
        """Return the binding of a tensor of this stream."""
        return _binding(self.message, step_index, layer, digest)

    @staticmethod
    async def read(messages: Requests) -> "_Opening":
        first = await anext(aiter(messages), None)
        if first is None or first.WhichOneof("message") != "open":
            raise InvalidArgument.of("message", "must be open: it is the first of its stream")
        message = first.open
        rows = _ROWS.get(message.guidance_mode, 0)
        if not rows:
            raise InvalidArgument.of("open.guidance_mode", "must say which halves of guidance the latents carry")
        tensors = await _receive_opening(message, messages)
        return _Opening(message, _order(message, rows, tensors))


def _binding(message: pb.OpenStream, step_index: int, layer: str, digest: str) -> Binding:
    attempt = message.attempt
    return Binding(attempt.request_id, attempt.fencing_token, step_index, layer, digest, message.stream_epoch)


async def _receive_opening(message: pb.OpenStream, messages: Requests) -> dict[str, Tensor]:
    """Return the message's tensors, by field. The caller chooses their dims: only their total size is bounded."""
    names = ["text_states"]
    names += [name for name in ("pooled_states", "time_ids", "encoded_conditioning") if message.HasField(name)]
    parts = [getattr(message, name) for name in names]
    expected = []
    for name, part in zip(names, parts, strict=True):
        dtype, _ = checked_description(part, FLOATS, None, None)
        binding = _binding(message, 0, name, message.base_model_digest)
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


class _Conversation:
    """Answer the messages after the opening: a step, its residuals, and so on."""

    def __init__(self, opening: _Opening, stream: OpenedStream, sender: TensorSender, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self._opening = opening
        self._stream = stream
        self._sender = sender
        self._receiver = TensorReceiver()
        self._latent_dtype, _ = checked_description(opening.message.text_states, FLOATS, None, None)

    def answer(self, step_index: int) -> Binding:
        """Return the binding of an answer by the line."""
        return self._opening.binding(step_index, ANSWER_LAYER, self._stream.digest)

    def latent(self, step_index: int) -> ExpectedTensor:
        """Return the expected form of a step's latents."""
        order = self._stream.order
        binding = self._opening.binding(step_index, "latent", order.base_model_digest)
        return ExpectedTensor(self._latent_dtype, (order.row_count, *order.latent_dims), binding)

    def opened(
        self, region: tensor_pb.SharedMemoryRegion | None, line: tensor_pb.StepLine | None
    ) -> pb.StreamResidualsResponse:
        """Return the answer to the opening."""
        dtype = tensor_pb.Dtype.ValueType(WIRE_DTYPES[self._stream.dtype].value)
        message = pb.StreamOpened(
            controlnet_digest=self._stream.digest,
            transport=transport_of(region),
            stream_epoch=self._opening.message.stream_epoch,
            shapes=[pb.ResidualShape(layer=layer.layer, dtype=dtype, dims=layer.dims) for layer in self._stream.layers],
            region=region,
            line=line,
        )
        return pb.StreamResidualsResponse(opened=message)

    async def answers(self, messages: Requests) -> AsyncGenerator[pb.StreamResidualsResponse, None]:
        """Yield the residuals of each step, until the caller sends no more. A step is computed while the previous one's
        residuals are being sent."""
        async with aclosing(one_ahead(self._steps(messages))) as steps:
            async for step_index, packed in steps:
                yield pb.StreamResidualsResponse(residuals=self._message(step_index, packed.tensors))
                for chunk in packed.chunks:
                    # As bytes, which the rpc kit sends unchanged.
                    yield cast(pb.StreamResidualsResponse, chunk.framed(pb.StreamResidualsResponse.CHUNK_FIELD_NUMBER))

    async def _steps(self, messages: Requests) -> AsyncGenerator[tuple[int, PackedTensors], None]:
        async for message in messages:
            match message.WhichOneof("message"):
                case "step":
                    yield message.step.step_index, await self._residuals(message.step, messages)
                case "ack":
                    self._sender.acknowledged(message.ack)
                case "region_opened":
                    self._sender.region_opened(message.region_opened)
                case other:
                    raise InvalidArgument.of("message", f"must be step, ack or region_opened, got {other or 'none'}")

    async def _residuals(self, step: pb.ResidualStep, messages: Requests) -> PackedTensors:
        self._stream.begin(step.step_index, step.timestep)
        found = await receive_all(self._receiver, [step.latent], [self.latent(step.step_index)], messages)
        latents = tensor_over(found.tensors[0])

        def pack(residuals: ControlResiduals) -> PackedTensors:
            digest = self._stream.digest
            return self._sender.pack(
                [
                    self._outgoing(tensor, self._opening.binding(step.step_index, name, digest))
                    for name, tensor in named_tensors(residuals)
                ]
            )

        packed: PackedTensors = await self._stream.residuals(step.timestep, latents, pack)
        return packed

    def _message(self, step_index: int, tensors: Sequence[tensor_pb.Tensor]) -> pb.Residuals:
        message = pb.Residuals(step_index=step_index, stream_epoch=self._opening.message.stream_epoch, last_part=True)
        for tensor in tensors:
            layer = tensor.binding.layer
            if layer == "mid_block":
                message.mid_block_residual.CopyFrom(tensor)
            elif layer.startswith("down_block_"):
                message.down_block_residuals.append(tensor)
            else:
                block = pb.BlockResidual(block_index=int(layer.removeprefix("block_")), residual=tensor)
                message.block_residuals.append(block)
        return message
