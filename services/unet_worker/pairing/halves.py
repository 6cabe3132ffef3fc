"""Halves of other workers' pictures, transport-neutral: opened where they fit, then one step after the other."""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch import Tensor

from pentimento.diffusion.engine import FinishedPainting, PaintingTicket, StepEngine
from pentimento.diffusion.families import Conditioning, DiffusionModel, batch_key
from pentimento.diffusion.guidance_half import AskedStep, AskedSteps, HalfStart
from pentimento.diffusion.painting import PaintingRequest
from pentimento.domain.errors import (
    Aborted,
    Cancelled,
    FailedPrecondition,
    InvalidArgument,
    PentimentoError,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import Attempt, FromNoise, GenerationSpec, LoraSelection, Route, Scheduler
from pentimento.domain.reasons import Reason
from pentimento.tensors.lines import LineListener
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.torch_tensors import WIRE_DTYPES
from pentimento.wire.tensors import Dtype
from services.unet_worker import metrics
from services.unet_worker.adapters.lora_shelf import LoraShelf
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.attempts.validation import check_lora, check_size_and_steps
from services.unet_worker.control.conditions import controlnets_see_latents
from services.unet_worker.control.remote_control import RemoteControl, RemoteControlNet
from services.unet_worker.control.replicas import ControlNetReplicas
from services.unet_worker.pairing.controlled_halves import check_controlnets

# By the contract's field: what a family conditions on, as (element type, dims) of one row.
OpeningShapes = Mapping[str, tuple[Dtype, tuple[int, ...]]]


@dataclass(frozen=True)
class HalfOrder:
    """OpenHalf in domain values; `conditioning` has one row, of the unconditional half where `unconditional`."""

    attempt: Attempt
    model_digest: str
    width_px: int
    height_px: int
    step_count: int
    conditioning: Conditioning
    loras: tuple[LoraSelection, ...] = field(default=(), repr=False)
    controlnets: tuple[RemoteControlNet, ...] = field(default=(), repr=False)
    unconditional: bool = False


class GuidanceHalves:
    """The halves that a loaded model computes for other workers; `directory` is where memory is shared with those of
    this host, `replicas` are where ControlNets are served. On the event loop only, but for its construction, which
    waits for the engine."""

    def __init__(
        self,
        model: DiffusionModel,
        held: HeldModel,
        engine: StepEngine,
        loras: LoraShelf,
        directory: RegionDirectory | None,
        replicas: ControlNetReplicas,
    ) -> None:
        self.directory = directory
        self._replicas = replicas
        self._model = model
        self._held = held
        self._engine = engine
        self._loras = loras
        self._open: set[OpenHalf] = set()
        self.opening_shapes = engine.call(self._shapes).result()

    @property
    def listener(self) -> LineListener:
        """Who hears steps that come by a line: the thread that computes them."""
        return self._engine.waiting

    @property
    def open_count(self) -> int:
        """Those that are open."""
        return len(self._open)

    @property
    def controlnets_see_latents(self) -> bool:
        """Whether ControlNets of this model are told latents, not images."""
        return controlnets_see_latents(self._held.family)

    def condition_shape(self, width_px: int, height_px: int, step_count: int) -> tuple[Dtype, tuple[int, ...]]:
        """Return element type and dims of a condition that is a latent. Raises InvalidArgument for a picture of another
        size, or of more steps, than the model paints."""
        held = self._held
        check_size_and_steps(_spec_of(held, width_px, height_px, step_count), held)
        return self.latent_shape(width_px, height_px)

    def latent_shape(self, width_px: int, height_px: int) -> tuple[Dtype, tuple[int, ...]]:
        """Return element type and dims of a step's latents and of its prediction."""
        return WIRE_DTYPES[self._model.dtype], self._model.latent_shape(width_px, height_px)

    @contextmanager
    def opened(self, order: HalfOrder, free_count: int) -> Iterator["OpenHalf"]:
        """Hold a half open, one of at most `free_count` more. Raises FailedPrecondition for another model, NotFound for
        a LoRA that is not here and cannot be fetched, InvalidArgument for a picture that this worker never paints and
        for what is wrong with a LoRA or ControlNet, ResourceExhausted when it is full."""
        spec = replace(_spec_of(self._held, order.width_px, order.height_px, order.step_count), loras=order.loras)
        self._check(order, spec)
        if free_count <= 0:
            raise ResourceExhausted("NO_CREDIT", "this worker has no credit for halves of others")
        route = Route("half", FromNoise(), self._held.model, self._held.model_digest)
        control = self._control(order, spec, route)
        half = OpenHalf(order, self._engine, control, lambda steps: self._painting(order, spec, route, steps, control))
        self._open.add(half)
        try:
            yield half
        finally:
            self._open.discard(half)
            half.close()

    def stop(self) -> None:
        """End all: their pictures are painted by their own workers alone."""
        for half in self._open:
            half.end(stopping())

    def _shapes(self) -> OpeningShapes:
        width_px, height_px = self._held.default_width_px, self._held.default_height_px
        row = self._model.conditioning(self._model.encode_prompt(""), width_px, height_px)
        named = (("text_states", row.states), ("pooled_states", row.pooled), ("time_ids", row.sizes))
        return {name: (WIRE_DTYPES[tensor.dtype], tuple(tensor.shape)) for name, tensor in named if tensor is not None}

    def _check(self, order: HalfOrder, spec: GenerationSpec) -> None:
        if order.model_digest != self._held.model_digest:
            message = f"this worker holds {self._held.model_digest}, not {order.model_digest[:100]!r}"
            raise FailedPrecondition("MODEL_DIGEST_MISMATCH", message)
        check_size_and_steps(spec, self._held)
        self._engine.limits.check(batch_key(spec))
        known = {(adapter.name, adapter.digest) for adapter in self._loras.adapters}
        for lora in order.loras:
            check_lora(lora, lambda name, digest: (name, digest) in known, self._loras.takes_uploaded, "open.loras")
        check_controlnets(order.controlnets, (order.width_px, order.height_px))

    def _control(self, order: HalfOrder, spec: GenerationSpec, route: Route) -> RemoteControl | None:
        """Its streams are opened with the first step, for the one row that there is."""
        if not order.controlnets:
            return None
        attempted = ExecuteOrder(order.attempt, spec, route, self._held.worker_generation)
        return RemoteControl(
            attempted,
            self._held,
            order.controlnets,
            self._replicas,
            self._engine.wake,
            unconditional=order.unconditional,
        )

    def _painting(
        self, order: HalfOrder, spec: GenerationSpec, route: Route, steps: AskedSteps, control: RemoteControl | None
    ) -> PaintingRequest:
        device = self._model.device
        states, *others = order.conditioning.parts
        texts = Conditioning(states.to(device), *(part if part is None else part.to(device) for part in others))
        loras = self._loras.source(spec, route)
        return PaintingRequest(spec, HalfStart(texts, steps), control=control, loras=loras)


def stopping() -> Unavailable:
    """Return what halves end with that their worker computes no longer."""
    return Unavailable(Reason.DRAINING, "this worker stops, or takes another model")


def _spec_of(held: HeldModel, width_px: int, height_px: int, step_count: int) -> GenerationSpec:
    """Of a picture of one row: without guidance, and of no prompt, which is there as text states."""
    return GenerationSpec(
        prompt="",
        negative_prompt="",
        model=held.model,
        width_px=width_px,
        height_px=height_px,
        num_inference_steps=step_count,
        guidance_scale=1.0,
        scheduler=Scheduler(held.schedulers[0]),
        seed=0,
    )


class OpenHalf:
    """One half of one picture, and the listener of its painting. On the event loop only, but for what the engine tells;
    one step at a time."""

    def __init__(
        self,
        order: HalfOrder,
        engine: StepEngine,
        control: RemoteControl | None,
        painting: Callable[[AskedSteps], PaintingRequest],
    ) -> None:
        self.order = order
        self._control = control
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._steps = AskedSteps(order.step_count, self._answer)
        self._request = painting(self._steps)
        self._ticket: PaintingTicket | None = None
        self._last_step = -1
        self._failure: PentimentoError | None = None
        self._answered: asyncio.Future[Tensor] = self._loop.create_future()
        # Where answers go by a line, and what it is told that it failed.
        self._answer_now: Callable[[Tensor], None] | None = None
        self._tell_failure: Callable[[PentimentoError], None] = lambda error: None

    @property
    def computes(self) -> bool:
        """Whether a step is under way."""
        return self._steps.asked is not None

    def begin(self, step_index: int, timestep: float) -> None:
        """Check what is asked next. Raises Aborted (STALE_FRAME) for a step that is not after the last one,
        InvalidArgument for one that no schedule has."""
        if step_index <= self._last_step:
            raise Aborted("STALE_FRAME", f"step {step_index} came after step {self._last_step}")
        if step_index >= self.order.step_count:
            raise InvalidArgument.of("step.step_index", f"must be below {self.order.step_count}, got {step_index}")
        if not math.isfinite(timestep):
            raise InvalidArgument.of("step.timestep", f"must be finite, got {timestep}")
        self._last_step = step_index

    async def predict(self, timestep: float, latent: Tensor) -> Tensor:
        """Return the network's prediction for the step that was begun, shaped as `latent`. Raises what the engine ends
        the half with."""
        self._answered = self._loop.create_future()
        self._compute(timestep, latent)
        self._engine.wake()
        return await self._answered

    def predict_now(
        self,
        timestep: float,
        latent: Tensor,
        answer: Callable[[Tensor], None],
        failed: Callable[[PentimentoError], None],
    ) -> None:
        """On the engine's thread: have the network's prediction for the step that was begun given to `answer`, on that
        thread; what that raises, and what the engine ends the half with, goes to `failed` on the event loop. Raises
        what ended the half before."""
        self._answer_now, self._tell_failure = answer, failed
        self._compute(timestep, latent)

    def _compute(self, timestep: float, latent: Tensor) -> None:
        if self._failure is not None:
            raise self._failure
        self._steps.ask(AskedStep(self._last_step, timestep, latent))
        if self._ticket is None:
            self._ticket = self._engine.submit(self._request, self)

    def end(self, error: PentimentoError) -> None:
        """Fail what is asked now or later with `error`."""
        self._failure = self._failure or error
        self._tell_failure(error)
        if not self._answered.done():
            self._answered.set_exception(error)
        if self._ticket is not None:
            self._ticket.stop(error)

    def close(self) -> None:
        """Stop it. Harmless twice."""
        if self._control is not None:
            self._control.close()
        self._answered.cancel()
        if self._ticket is not None:
            self._ticket.stop(Cancelled("CANCELLED", "the half was closed"))

    def started(self, first_step: int, step_count: int) -> None:
        """See `PaintingListener`. Nobody follows a half."""

    def stepped(self, step: int, predicted_clean: Tensor | None) -> None:
        """Nobody follows a half."""

    def captured(self, step: int, sigma: float, latent: Tensor) -> None:
        """Nothing is captured."""

    def finished(self, painting: FinishedPainting) -> None:
        """The last step was answered like the others."""

    def failed(self, error: PentimentoError) -> None:
        """Fail what is asked with it."""
        self._tell(lambda: self.end(error))

    def _answer(self, step_index: int, prediction: Tensor) -> None:
        metrics.PEER_HALVES.inc()
        if self._answer_now is not None:
            try:
                self._answer_now(prediction)
            except PentimentoError as error:
                self.failed(error)
        else:
            self._tell(lambda: None if self._answered.done() else self._answered.set_result(prediction))

    def _tell(self, act: Callable[[], None]) -> None:
        """On the event loop, where there is still one."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act)
