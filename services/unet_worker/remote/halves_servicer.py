"""Serve PredictHalf of pentimento.api.worker.v1. A message's values are accepted only if its stream expects them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, cast

from torch import Tensor

from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.clients.guidance_half import encoded_field, opening_tensor
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.diffusion.families import Conditioning
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Attempt, ControlNetSelection, LoraSelection
from pentimento.tensors.cuda import outgoing_tensor, tensor_over
from pentimento.tensors.receiving import ExpectedTensor, TensorReceiver, receive_all
from pentimento.tensors.sending import transport_of
from pentimento.tensors.step_server import StepService, messages_until, opening_of, serve_steps
from pentimento.wire.codec import decode
from pentimento.wire.tensors import Binding, size_of
from services.unet_worker.remote.halves import (
    PREDICTION,
    GuidanceHalves,
    HalfOrder,
    OpenHalf,
    OpeningShapes,
    check_controlnet_count,
    controlnet_field,
    stopping,
)
from services.unet_worker.remote.remote_control import RemoteControlNet

Requests = AsyncIterator[pb.PredictHalfRequest]
Responses = AsyncGenerator[pb.PredictHalfResponse, None]
# Time for a stream to end: a peer that reads nothing does not delay another model.
LET_GO_S = 1.0


class HalfServicer:
    """Serve halves over gRPC; see `device_backend.HalfStreams`."""

    def __init__(self, halves: GuidanceHalves) -> None:
        self._halves = halves
        # The future that ends each stream, in any state.
        self._ends: dict[asyncio.Task[Any], asyncio.Future[None]] = {}

    @property
    def open_count(self) -> int:
        return self._halves.open_count

    def stop(self) -> None:
        self._halves.stop()
        for end in self._ends.values():
            if not end.done():
                end.set_exception(stopping())

    async def let_go(self) -> None:
        """Stop, and return once no stream refers to the model, or after LET_GO_S if a peer does not read."""
        self.stop()
        if self._ends:
            await asyncio.wait(tuple(self._ends), timeout=LET_GO_S)

    async def answers(self, messages: Requests, free_count: Callable[[], int]) -> Responses:
        stream, end = cast("asyncio.Task[Any]", asyncio.current_task()), asyncio.get_running_loop().create_future()
        self._ends[stream] = end
        try:
            async with aclosing(self._followed(messages_until(messages, end), free_count)) as answers:
                async for answer in answers:
                    yield answer
        finally:
            del self._ends[stream]
            if not end.cancel():
                end.exception()  # else it is logged, if the stream ended otherwise

    async def _followed(self, messages: Requests, free_count: Callable[[], int]) -> Responses:
        message = await _opening(messages)
        order = await _order(message, _opening_shapes(message, self._halves), messages)
        with self._halves.opened(order, free_count()) as half:
            service = self._service(message, half)
            async with aclosing(serve_steps(messages, message.transport, self._halves.directory, service)) as answers:
                async for answer in answers:
                    yield answer

    def _service(self, opening: pb.OpenHalf, half: OpenHalf) -> StepService:
        dtype, dims = self._halves.latent_shape(half.order.width_px, half.order.height_px)
        return StepService(
            step_count=half.order.step_count,
            latents=ExpectedTensor(dtype, dims, _binding(opening, "latent")),
            answer=_binding(opening, PREDICTION),
            answer_sizes=[size_of(dtype, dims)],
            submit=half.submit,
            outgoing=outgoing_tensor,
            listener=self._halves.listener,
            most_under_way=1,
            opened=partial(_opened, opening),
            answered=partial(_prediction, opening.stream_epoch),
            chunk_field=pb.PredictHalfResponse.CHUNK_FIELD_NUMBER,
            shares_little=True,
        )


async def _opening(messages: Requests) -> pb.OpenHalf:
    opening: pb.OpenHalf = await opening_of(messages)
    if opening.half not in (pb.GUIDANCE_HALF_UNCONDITIONAL, pb.GUIDANCE_HALF_CONDITIONAL):
        raise InvalidArgument.of("open.half", "must name the half of the guidance")
    return opening


async def _order(message: pb.OpenHalf, shapes: OpeningShapes, messages: Requests) -> HalfOrder:
    """Receive exactly the tensors that the model and its ControlNets condition on, of one row."""
    parts = [opening_tensor(message, name) for name in shapes]
    expected = [ExpectedTensor(*shape, _binding(message, name)) for name, shape in shapes.items()]
    found = await receive_all(TensorReceiver(), parts, expected, messages)
    tensors = {name: tensor_over(wire) for name, wire in zip(shapes, found.tensors, strict=True)}
    return HalfOrder(
        attempt=decode(message.attempt, Attempt, "attempt"),
        model_digest=message.model_digest,
        width_px=message.width_px,
        height_px=message.height_px,
        step_count=message.step_count,
        conditioning=Conditioning(tensors["text_states"], tensors.get("pooled_states"), tensors.get("time_ids")),
        loras=tuple(decode(lora, LoraSelection) for lora in message.loras),
        controlnets=tuple(
            _controlnet(one, tensors.get(encoded_field(place))) for place, one in enumerate(message.controlnets)
        ),
        unconditional=message.half == pb.GUIDANCE_HALF_UNCONDITIONAL,
    )


def _opening_shapes(message: pb.OpenHalf, halves: GuidanceHalves) -> OpeningShapes:
    shapes = halves.opening_shapes
    for name in ("pooled_states", "time_ids"):
        _check_presence(message.HasField(name), name in shapes, f"open.{name}")
    check_controlnet_count(len(message.controlnets))
    for place, controlnet in enumerate(message.controlnets):
        is_encoded, field = controlnet.HasField("encoded_conditioning"), controlnet_field(place)
        _check_presence(is_encoded, halves.controlnets_see_latents, f"{field}.encoded_conditioning")
    if len(message.text_states.dims) == 3:
        shapes = {**shapes, "text_states": halves.text_shape(message.text_states.dims[1])}
    if not message.controlnets or not halves.controlnets_see_latents:
        return shapes
    shape = halves.condition_shape(message.width_px, message.height_px, message.step_count)
    return {**shapes, **{encoded_field(place): shape for place in range(len(message.controlnets))}}


def _check_presence(is_there: bool, wanted: bool, field: str) -> None:
    if is_there is not wanted:
        raise InvalidArgument.of(field, f"must {'' if wanted else 'not '}be there for this model")


def _controlnet(message: pb.HalfControlNet, encoded: Tensor | None) -> RemoteControlNet:
    selection = decode(message.controlnet, ControlNetSelection, "controlnet")
    setting = ControlSetting(selection.conditioning_scale, selection.start_fraction, selection.end_fraction)
    return RemoteControlNet(selection, setting, tuple(message.addresses), encoded)


def _binding(message: pb.OpenHalf, layer: str) -> Binding:
    attempt = message.attempt
    return Binding(attempt.request_id, attempt.fencing_token, 0, layer, message.model_digest, message.stream_epoch)


def _opened(
    opening: pb.OpenHalf, region: tensor_pb.SharedMemoryRegion | None, line: tensor_pb.StepLine | None
) -> pb.PredictHalfResponse:
    opened = pb.HalfOpened(transport=transport_of(region), stream_epoch=opening.stream_epoch, region=region, line=line)
    return pb.PredictHalfResponse(opened=opened)


def _prediction(stream_epoch: int, step_index: int, tensors: Sequence[tensor_pb.Tensor]) -> pb.PredictHalfResponse:
    prediction = pb.HalfPrediction(step_index=step_index, prediction=tensors[0], stream_epoch=stream_epoch)
    return pb.PredictHalfResponse(prediction=prediction)
