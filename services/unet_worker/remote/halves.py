"""Compute halves of other workers' requests, transport-neutral: opened if they fit, then one step after the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from pentimento.diffusion.denoising import DenoisingRequest
from pentimento.diffusion.denoising_sources import AskedStep, AskedSteps, HalfStart
from pentimento.diffusion.engine import DenoisingListener, EngineJob, StepEngine
from pentimento.diffusion.families import Conditioning, DiffusionModel
from pentimento.domain.adapters import ADAPTER_NAME_RULE, is_adapter_name, is_digest
from pentimento.domain.errors import (
    Cancelled,
    FailedPrecondition,
    InvalidArgument,
    PentimentoError,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import Attempt, FromNoise, GenerationSpec, LoraSelection, Route, promptless
from pentimento.domain.prompt_syntax import MAX_PROMPT_CHUNKS
from pentimento.domain.reasons import Reason
from pentimento.images import read_header
from pentimento.tensors.cuda import WIRE_DTYPES, tensor_over
from pentimento.tensors.lines import LineListener
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.step_server import Deliver
from pentimento.wire.tensors import Dtype, WireTensor
from services.unet_worker import metrics
from services.unet_worker.adapters.lora_shelf import LoraShelf
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.attempts.validation import check_lora, check_size_and_steps
from services.unet_worker.remote.remote_control import RemoteControl, RemoteControlNet, controlnets_see_latents
from services.unet_worker.remote.replicas import ControlNetReplicas

# The layer of an answer.
PREDICTION = "prediction"
MAX_CONTROLNETS = 16
MAX_REPLICAS = 256
MAX_ADDRESS_LENGTH = 1024
_SHOWN_LENGTH = 80


def controlnet_field(place: int) -> str:
    return f"open.controlnets[{place}]"


def check_controlnet_count(count: int) -> None:
    if count > MAX_CONTROLNETS:
        raise InvalidArgument.of("open.controlnets", f"must be at most {MAX_CONTROLNETS}, got {count}")


def check_controlnets(controlnets: Sequence[RemoteControlNet], size_px: tuple[int, int]) -> None:
    """Raise InvalidArgument, by the contract's field, for a ControlNet that is invalid for a half of an image of
    (width, height)."""
    for place, controlnet in enumerate(controlnets):
        _check_controlnet(controlnet, controlnet_field(place), size_px)


def _check_controlnet(controlnet: RemoteControlNet, where: str, size_px: tuple[int, int]) -> None:
    selection = controlnet.selection
    if not is_adapter_name(selection.name):
        raise InvalidArgument.of(f"{where}.controlnet.name", f"{ADAPTER_NAME_RULE}, got {_shown(selection.name)}")
    if not is_digest(selection.digest):
        limit = "must be sha256: and 64 hexadecimal digits"
        raise InvalidArgument.of(f"{where}.controlnet.digest", f"{limit}, got {_shown(selection.digest)}")
    controlnet.setting.check(f"{where}.controlnet")
    if not 1 <= len(controlnet.addresses) <= MAX_REPLICAS:
        raise InvalidArgument.of(f"{where}.addresses", f"must be 1 to {MAX_REPLICAS}, got {len(controlnet.addresses)}")
    if not all(1 <= len(address) <= MAX_ADDRESS_LENGTH for address in controlnet.addresses):
        raise InvalidArgument.of(f"{where}.addresses", f"must have 1 to {MAX_ADDRESS_LENGTH} characters each")
    if controlnet.encoded is None:
        _check_image(selection.conditioning_image, f"{where}.controlnet.conditioning_image", size_px)


def _check_image(image: bytes, field: str, size_px: tuple[int, int]) -> None:
    header = read_header(image, field)
    if (header.width_px, header.height_px) != size_px:
        wanted = f"must be of the image's size, {size_px[0]} x {size_px[1]} pixels"
        raise InvalidArgument.of(field, f"{wanted}, got {header.width_px} x {header.height_px}")


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_LENGTH])


# Inputs of a family by the contract's field, as (element type, dims) of one row.
OpeningShapes = Mapping[str, tuple[Dtype, tuple[int, ...]]]


@dataclass(frozen=True)
class HalfOrder:
    """Hold OpenHalf in domain values; `conditioning` has one row, of the unconditional half if `unconditional`."""

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
    """Compute halves for other workers with a loaded model; `directory` holds the memory shared with workers of this
    host, `replicas` serve the ControlNets. On the event loop only, except for the construction, which waits for the
    engine."""

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
        return self._engine.waiting

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def controlnets_see_latents(self) -> bool:
        return controlnets_see_latents(self._held.family)

    def condition_shape(self, width_px: int, height_px: int, step_count: int) -> tuple[Dtype, tuple[int, ...]]:
        """Return element type and dims of a condition that is a latent. Raises InvalidArgument for a size or step count
        that the model does not support."""
        held = self._held
        check_size_and_steps(_spec_of(held, width_px, height_px, step_count), held)
        return self.latent_shape(width_px, height_px)

    def latent_shape(self, width_px: int, height_px: int) -> tuple[Dtype, tuple[int, ...]]:
        return WIRE_DTYPES[self._model.dtype], self._model.latent_shape(width_px, height_px)

    @contextmanager
    def opened(self, order: HalfOrder, free_count: int) -> Iterator["OpenHalf"]:
        """Hold a half open, one of at most `free_count` more. Raises FailedPrecondition for another model, NotFound for
        a LoRA that this worker does not have and cannot fetch, InvalidArgument for an unsupported image and for an
        invalid LoRA or ControlNet, ResourceExhausted if the worker is full."""
        spec = replace(_spec_of(self._held, order.width_px, order.height_px, order.step_count), loras=order.loras)
        self._check(order, spec)
        if free_count <= 0:
            raise ResourceExhausted("NO_CREDIT", "this worker has no credit for halves of others")
        route = Route("half", FromNoise(), self._held.model, self._held.model_digest)
        control = self._control(order, spec, route)
        half = OpenHalf(order, self._engine, control, lambda steps: self._denoising(order, spec, route, steps, control))
        self._open.add(half)
        try:
            yield half
        finally:
            self._open.discard(half)
            half.close()

    def stop(self) -> None:
        """End all halves: other workers continue their requests without a peer."""
        for half in self._open:
            half.end(stopping())

    def text_shape(self, token_count: int) -> tuple[Dtype, tuple[int, ...]]:
        """Return element type and dims of text states with that number of tokens. Raises InvalidArgument for a number
        that no prompt of the model has."""
        dtype, (rows, usual, width) = self.opening_shapes["text_states"]
        step = self._model.chunk_tokens
        most = usual + (MAX_PROMPT_CHUNKS - 1) * step
        if not usual <= token_count <= most or (token_count - usual) % max(step, 1):
            limit = f"must be {usual} to {most} tokens" + (f" in steps of {step}" if step else "")
            raise InvalidArgument.of("open.text_states", f"{limit}, got {token_count}")
        return dtype, (rows, token_count, width)

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
        self._engine.limits.check(self._model.info.batch_key(spec))
        known = {(adapter.name, adapter.digest) for adapter in self._loras.adapters}
        for lora in order.loras:
            check_lora(lora, lambda name, digest: (name, digest) in known, self._loras.takes_uploaded, "open.loras")
        check_controlnets(order.controlnets, (order.width_px, order.height_px))

    def _control(self, order: HalfOrder, spec: GenerationSpec, route: Route) -> RemoteControl | None:
        """Return the half's residual source; its streams open with the first step, for its one row."""
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

    def _denoising(
        self, order: HalfOrder, spec: GenerationSpec, route: Route, steps: AskedSteps, control: RemoteControl | None
    ) -> DenoisingRequest:
        device = self._model.device
        states, *others = order.conditioning.parts
        texts = Conditioning(states.to(device), *(part if part is None else part.to(device) for part in others))
        loras = self._loras.source(spec, route)
        return DenoisingRequest(spec, HalfStart(texts, steps), control=control, loras=loras)


def stopping() -> Unavailable:
    return Unavailable(Reason.DRAINING, "this worker stops, or takes another model")


def _spec_of(held: HeldModel, width_px: int, height_px: int, step_count: int) -> GenerationSpec:
    """Return a request of one row: without guidance, and without a prompt, which arrives as text states."""
    return promptless(held.model, (width_px, height_px), step_count, 1.0, held.schedulers[0])


class OpenHalf(DenoisingListener):
    """Hold one half of one request, and listen to the engine's events; one step at a time."""

    def __init__(
        self,
        order: HalfOrder,
        engine: StepEngine,
        control: RemoteControl | None,
        denoising: Callable[[AskedSteps], DenoisingRequest],
    ) -> None:
        self.order = order
        self._control = control
        self._engine = engine
        self._steps = AskedSteps.of(order.step_count, self._answer)
        self._request = denoising(self._steps)
        self._job: EngineJob | None = None
        self._failure: PentimentoError | None = None
        # Those of the last step.
        self._deliver: Deliver[Any] | None = None
        self._answered: Future[Any] = Future()

    def submit(
        self, step_index: int, timestep: float, latents: WireTensor, deliver: Deliver[Any], in_parts: bool
    ) -> "Future[Any]":
        """Request a step's prediction, which `deliver` takes on the engine's thread; its result, or the error with
        which the engine ends the half, settles the future. Raises the error that ended the half before."""
        if self._failure is not None:
            raise self._failure
        self._deliver, self._answered = deliver, Future()
        self._steps.ask(AskedStep(step_index, timestep, tensor_over(latents)))
        if self._job is None:
            self._job = self._engine.submit(self._request, self)
        self._engine.wake()
        return self._answered

    def end(self, error: PentimentoError) -> None:
        """Fail the current and every later step with `error`; on any thread."""
        self._failure = self._failure or error
        with suppress(InvalidStateError):
            self._answered.set_exception(error)
        if self._job is not None:
            self._job.stop(error)

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
        self._answered.cancel()
        if self._job is not None:
            self._job.stop(Cancelled("CANCELLED", "the half was closed"))

    def failed(self, error: PentimentoError) -> None:
        self.end(error)

    def _answer(self, step_index: int, prediction: Tensor) -> None:
        metrics.PEER_HALVES.inc()
        assert self._deliver is not None
        # The stream may have ended meanwhile.
        with suppress(InvalidStateError):
            try:
                self._answered.set_result(self._deliver([(PREDICTION, prediction)], ()))
            except PentimentoError as error:
                self._answered.set_exception(error)
