"""Serve PredictHalf of pentimento.api.worker.v1. A message's values are accepted only if its stream expects them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, cast

from torch import Tensor

from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.clients.guidance_half import encoded_field, opening_tensor
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.diffusion.families import Conditioning
from pentimento.domain.errors import InvalidArgument, ResourceExhausted
from pentimento.domain.generation import Attempt, ControlNetSelection, LoraSelection
from pentimento.tensors.device import outgoing_tensor, tensor_over
from pentimento.tensors.receiving import ExpectedTensor, TensorReceiver, receive_all
from pentimento.tensors.sending import PackedTensors, TensorSender, open_sender, transport_of
from pentimento.tensors.step_lines import AnsweringLine, LinedLatents, LinedSteps, make_answering_line, messages_until
from pentimento.wire.codec import decode
from pentimento.wire.tensors import Binding, size_of
from services.unet_worker.control.remote_control import RemoteControlNet
from services.unet_worker.pairing.halves import (
    GuidanceHalves,
    HalfOrder,
    OpenHalf,
    OpeningShapes,
    check_controlnet_count,
    controlnet_field,
    stopping,
)

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
        """End all streams: other workers continue their requests without a peer."""
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
        """Yield the agreed opening, then one prediction per step."""
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
            latents = self._halves.latent_shape(order.width_px, order.height_px)
            directory = self._halves.directory
            sizes = [size_of(*latents)]
            opening = partial(open_sender, message.transport, directory, sizes, little=True)
            sender, region = await asyncio.to_thread(opening)
            expected = ExpectedTensor(*latents, _binding(message, 0, "latent"))
            conversation = _HalfConversation(message, half, expected, sender)
            line, told = make_answering_line(directory, sender, conversation.wanted, conversation.answered)
            lined = conversation.steps = self._lined(line, conversation)
            try:
                yield conversation.opened(region, told)
                followed = messages if lined is None else lined.until_failed(messages)
                async with aclosing(conversation.answers(followed)) as answers:
                    async for answer in answers:
                        yield answer
            finally:
                if lined is not None:
                    lined.close()
                sender.close()

    def _lined(self, line: AnsweringLine | None, conversation: "_HalfConversation") -> LinedSteps | None:
        if line is None:
            return None
        return LinedSteps(line, conversation.begin, conversation.lined(line), self._halves.listener)


async def _opening(messages: Requests) -> pb.OpenHalf:
    first = await anext(aiter(messages), None)
    if first is None or first.WhichOneof("message") != "open":
        raise InvalidArgument.of("message", "must be open: it is the first of its stream")
    if first.open.half not in (pb.GUIDANCE_HALF_UNCONDITIONAL, pb.GUIDANCE_HALF_CONDITIONAL):
        raise InvalidArgument.of("open.half", "must name the half of the guidance")
    return first.open


async def _order(message: pb.OpenHalf, shapes: OpeningShapes, messages: Requests) -> HalfOrder:
    """Receive exactly the tensors that the model and its ControlNets condition on, of one row."""
    parts = [opening_tensor(message, name) for name in shapes]
    expected = [ExpectedTensor(*shape, _binding(message, 0, name)) for name, shape in shapes.items()]
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
    """Return the shapes of the required tensors."""
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


def _binding(message: pb.OpenHalf, step_index: int, layer: str) -> Binding:
    attempt = message.attempt
    ours = (attempt.request_id, attempt.fencing_token)
    return Binding(*ours, step_index, layer, message.model_digest, message.stream_epoch)


class _HalfConversation:
    """Answer the messages after the opening: a step, its prediction, and so on."""

    def __init__(self, opening: pb.OpenHalf, half: OpenHalf, latent: ExpectedTensor, sender: TensorSender) -> None:
        self._opening = opening
        self._half = half
        self._latent = latent
        self._sender = sender
        self._receiver = TensorReceiver()
        self.steps: LinedSteps | None = None

    def wanted(self, step_index: int) -> ExpectedTensor:
        """Return the expected form of a step's latents."""
        return ExpectedTensor(self._latent.dtype, self._latent.dims, _binding(self._opening, step_index, "latent"))

    def answered(self, step_index: int) -> Binding:
        """Return the binding of a step's prediction."""
        return _binding(self._opening, step_index, "prediction")

    def begin(self, step_index: int, timestep: float) -> None:
        """Validate a step that comes by a line. Raises ResourceExhausted while another is running, and the errors of
        `OpenHalf.begin`."""
        if self._half.computes:
            raise ResourceExhausted("NO_CREDIT", "one step may be under way")
        self._half.begin(step_index, timestep)

    def lined(self, line: AnsweringLine) -> Callable[[LinedLatents], None]:
        """Return the function that takes the steps of a line."""

        def take(step: LinedLatents) -> None:
            def answer(prediction: Tensor) -> None:
                line.answer(step.step_index, [outgoing_tensor(prediction, self.answered(step.step_index))])

            assert self.steps is not None
            self._half.predict_now(step.timestep, tensor_over(step.latents), answer, self.steps.fail)

        return take

    def opened(
        self, region: tensor_pb.SharedMemoryRegion | None, line: tensor_pb.StepLine | None
    ) -> pb.PredictHalfResponse:
        """Return the answer to the opening."""
        return pb.PredictHalfResponse(
            opened=pb.HalfOpened(
                transport=transport_of(region),
                stream_epoch=self._opening.stream_epoch,
                region=region,
                line=line,
            )
        )

    async def answers(self, messages: Requests) -> Responses:
        """Yield the prediction of each step, until the caller sends no more."""
        async for message in messages:
            match message.WhichOneof("message"):
                case "step":
                    packed = await self._prediction(message.step, messages)
                    prediction = pb.HalfPrediction(
                        step_index=message.step.step_index,
                        prediction=packed.tensors[0],
                        stream_epoch=self._opening.stream_epoch,
                    )
                    yield pb.PredictHalfResponse(prediction=prediction)
                    for chunk in packed.chunks:
                        yield pb.PredictHalfResponse(chunk=chunk.message())
                case "ack":
                    self._sender.acknowledged(message.ack)
                case "region_opened":
                    self._sender.region_opened(message.region_opened)
                case other:
                    raise InvalidArgument.of("message", f"must be step, ack or region_opened, got {other or 'none'}")

    async def _prediction(self, step: pb.HalfStep, messages: Requests) -> PackedTensors:
        self._half.begin(step.step_index, step.timestep)
        found = await receive_all(self._receiver, [step.latent], [self.wanted(step.step_index)], messages)
        prediction: Tensor = await self._half.predict(step.timestep, tensor_over(found.tensors[0]))
        return self._sender.pack([outgoing_tensor(prediction, self.answered(step.step_index))])
