"""Hold the state of one request inside the engine, and define its listeners and the observers of
the batches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from pentimento.diffusion.denoising import Denoising, DenoisingRequest, model_input, thin
from pentimento.diffusion.denoising_sources import HalfStart
from pentimento.diffusion.families.model import BatchKey, ControlResiduals, DenoiserEncoding, DiffusionModel
from pentimento.diffusion.families.row_updates import PerSampleAdapters
from pentimento.diffusion.loras.lora import AdapterSet
from pentimento.diffusion.schedulers import SamplerState
from pentimento.domain.errors import DEADLINE_PASSED, DeadlineExceeded, PentimentoError
from pentimento.policies.step_batching import Urgency


@dataclass(frozen=True)
class FinishedDenoising:
    """Hold the final latent (1, channels, height, width), ready for the decoder, and its costs; times are seconds.

    `residual_waits_s` maps steps to the seconds they waited for residuals after their first half; other steps did not
    wait. `paired_step_count` steps used a peer's half. `device_s` is the request's share of its steps, by rows, plus
    its preparation: over all requests these add up to the busy time of the device. `taken_count` steps were taken; if
    steps were skipped, `thinned_steps` lists the steps taken from the first thinned one on. `reused_count` steps reused
    deep features.
    """

    latent: Tensor
    first_step: int
    step_count: int
    taken_count: int
    prompt_truncated: bool
    queued_at: float
    started_at: float
    prepared_at: float
    finished_at: float
    device_s: float
    lora_patch_step: int | None = None
    residual_waits_s: Mapping[int, float] = field(default_factory=dict)
    paired_step_count: int = 0
    thinned_steps: tuple[int, ...] = ()
    reused_count: int = 0


class DenoisingListener:
    """Receive the events of one request, on the engine's thread; must not block. The last event is one `finished` or
    `failed`. A subclass overrides the ones it needs."""

    def started(self, first_step: int, step_count: int) -> None:
        """Handle the start of denoising at `first_step` of `step_count` steps."""

    def stepped(self, step: int, predicted_clean: Tensor | None) -> None:
        """Handle the end of a step: `step` steps are done; `predicted_clean` is given when a preview is due."""

    def captured(self, step: int, sigma: float, latent: Tensor) -> None:
        """Receive a copy of the latent before `step`, at unit variance."""

    def finished(self, denoising: FinishedDenoising) -> None:
        """Receive the final latent and its costs."""

    def failed(self, error: PentimentoError) -> None:
        """Receive the error that ended the request."""


@dataclass(frozen=True)
class BatchReport:
    """Report one forward pass and its sampler steps: requests, rows computed (padding included), seconds."""

    request_count: int
    row_count: int
    seconds: float


class EngineObserver:
    """Receive events of the whole engine, on its thread; must not block. A subclass overrides the ones it needs."""

    def admitted(self, waited_s: float) -> None:
        """Handle a request that left the queue after `waited_s`."""

    def ran(self, report: BatchReport) -> None:
        """Receive the report of a batch."""

    def took_step(self, size: BatchKey, seconds: float, *, alone: bool) -> None:
        """Handle a whole step of a batch of requests of that size, `seconds` after the engine's step before, waits
        included, without idle time; `alone`: of one request."""

    def preempted(self, request_count: int) -> None:
        """Handle the preemption of `request_count` ready requests by more urgent ones."""

    def ran_out_of_memory(self, request_count: int) -> None:
        """Handle a forward pass of `request_count` requests that the device had no memory for."""


class EngineJob:
    """Hold a submitted request and, once it has begun, its denoising state. Only the engine's thread uses it, except
    for `stop` and `thin`."""

    def __init__(
        self,
        number: int,
        request: DenoisingRequest,
        shape: BatchKey,
        listener: DenoisingListener,
        queued_at: float = 0.0,
        due_at: float = 0.0,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.number = number
        self.request = request
        self.listener = listener
        self.queued_at = queued_at
        self._wake = wake
        # The first error given is reported.
        self._stop_error: PentimentoError | None = None
        # Steps from `thin` that the engine has not handled yet.
        self._asked_steps: tuple[int, ...] = ()
        # `whole_shape` counts both guidance rows; `shape` counts the rows computed here and selects the buffers.
        self.whole_shape = self.shape = shape
        self.urgency: Urgency = (due_at, number)
        self.denoising: Denoising | None = None
        self.started_at = 0.0
        self.prepared_at = 0.0
        self.device_s = 0.0
        self.residuals: ControlResiduals | None = None
        # The same residuals as the source returned them, before the copy to the device.
        self._taken: ControlResiduals | None = None
        # The next step's encoding, while it waits for residuals.
        self.encoding: DenoiserEncoding | None = None
        self._asked_step: int | None = None
        # Since when the next step has waited only for residuals; the seconds of such waits, by step.
        self._awaits_since: float | None = None
        self.residual_waits_s: dict[int, float] = {}
        # The last step with a decision on pairing, and the number of steps that used a peer's half.
        self.decided_step: int | None = None
        self.paired_steps = 0
        # ControlNets were asked for both rows: the request cannot return to one row.
        self.controlled_whole = False
        # Seconds from the end of the step before the last to the end of the last one, waits included.
        self.step_s = 0.0
        self._step_began_at = 0.0
        # In effect from `lora_patch_step` on; `adapter_row` holds them if the weights do not in the next pass.
        self.adapters: AdapterSet = ()
        self.adapter_row: PerSampleAdapters | None = None
        # The LoRAs that the denoiser's weights must have in the request's passes; see `BatchKey`.
        self.patched: tuple[tuple[str, float], ...] = ()
        self.lora_patch_step: int | None = None
        self._told_step = request.start.first_step

    def thin(self, steps: tuple[int, ...]) -> None:
        """Request that only these steps are taken from `steps[0]` on. Ignored if the request has passed `steps[0]` or
        was thinned before; `FinishedDenoising` reports the steps taken."""
        self._asked_steps = steps
        self._wake()

    def stop(self, error: PentimentoError) -> None:
        """End the request with `error` at the next step."""
        if self._stop_error is None:
            self._stop_error = error
            self._wake()

    @property
    def key(self) -> BatchKey:
        """Return the key that requests must share to be in one forward pass."""
        if not (self.request.alone or self.patched):
            return self.shape
        return replace(self.shape, alone=self.number + 1 if self.request.alone else 0, patched=self.patched)

    def begin(self, denoising: Denoising, extra_tokens: int) -> None:
        """Take the denoising state of the request, which has `extra_tokens` text tokens beyond the usual ones."""
        self.denoising = denoising
        self.whole_shape = replace(self.whole_shape, extra_tokens=extra_tokens)
        self.shape = replace(self.shape, extra_tokens=extra_tokens)

    @property
    def guided(self) -> bool:
        """Return whether classifier-free guidance runs."""
        return self.whole_shape.guided

    @property
    def controlled(self) -> bool:
        """Return whether the request has a ControlNet."""
        return self.request.control is not None

    def be_whole(self) -> None:
        """Compute all rows of the next step here."""
        self._see(conditional_only=False)

    def be_conditional(self) -> None:
        """Compute only the conditional row of the next step here."""
        self._see(conditional_only=True)

    def _see(self, *, conditional_only: bool) -> None:
        if self.begun.conditional_only is conditional_only:
            return
        self.begun.conditional_only = conditional_only
        self.shape = replace(self.whole_shape, guided=self.guided and not conditional_only)
        # Residuals depend on the rows.
        self._asked_step = None
        self.forget_step()

    @property
    def running(self) -> bool:
        """Return whether the request has begun."""
        return self.denoising is not None

    @property
    def begun(self) -> Denoising:
        """Return the denoising state of a request that has begun."""
        assert self.denoising is not None
        return self.denoising

    def stop_error(self, now: float) -> PentimentoError | None:
        """Return the error that ends the request now; None if it may continue."""
        deadline = self.request.deadline
        if self._stop_error is None and deadline is not None and now >= deadline:
            return DeadlineExceeded("DEADLINE_EXCEEDED", DEADLINE_PASSED)
        return self._stop_error

    def takes_input(self) -> bool:
        """Take the next step's latents if another worker samples them; return whether the input is complete."""
        start = self.request.start
        if not isinstance(start, HalfStart):
            return True
        asked = start.steps.asked
        if asked is not None and self.denoising is not None:
            self.denoising.state = SamplerState(asked.latent, asked.step_index)
        return asked is not None

    def takes_adapters(self) -> bool:
        """Take the LoRAs if they arrive between two steps; return True only in that call."""
        source = self.request.loras
        if source is None or self.lora_patch_step is not None or self.encoding is not None:
            return False
        taken = source.take(self._next_step)
        if taken is None:
            return False
        self.adapters, self.lora_patch_step = taken, self._next_step
        return True

    @property
    def may_go_on_without_adapters(self) -> bool:
        """Return whether the LoRAs have arrived, or the next step may run without them."""
        source = self.request.loras
        return source is None or self.lora_patch_step is not None or self._next_step < source.latest_step

    @property
    def _next_step(self) -> int:
        return self.denoising.state.step_index if self.denoising else self.request.start.first_step

    @property
    def awaits_residuals(self) -> bool:
        """Return whether residuals of the next step are still missing; False without a ControlNet."""
        residuals = self.residuals
        return self.request.control is not None and (residuals is None or residuals.awaited_count > 0)

    @property
    def is_split(self) -> bool:
        """Return whether the next step runs in parts, with residuals that arrive in between."""
        return self.awaits_residuals or self.encoding is not None

    @property
    def reach(self) -> int:
        """Return the number of a transformer's blocks that the next step can run before a residual is missing."""
        encoding = self.encoding or DenoiserEncoding()
        return encoding.reach(self.residuals) if self.awaits_residuals else encoding.block_count

    @property
    def may_advance(self) -> bool:
        """Return whether the request waits between a transformer's blocks and the next block can run."""
        return self.encoding is not None and self.reach > self.encoding.blocks_done

    def has_residuals(self, model: DiffusionModel) -> bool:
        """Request the next step's residuals and return whether all have arrived; True without a ControlNet."""
        source = self.request.control
        if source is None or self.denoising is None:
            return True
        self.ask_residuals(model)
        if self.awaits_residuals:
            taken = source.take(self.denoising.state.step_index)
            # Copied to the device once: a source returns the same object until more arrive.
            if taken is not self._taken:
                self._taken, self.residuals = taken, None if taken is None else taken.on(model.device)
        return not self.awaits_residuals

    def ask_residuals(self, model: DiffusionModel) -> None:
        """Request the next step's residuals, unless they were requested or no step follows."""
        source, denoising = self.request.control, self.denoising
        if source is None or denoising is None or denoising.done or not self.takes_input():
            return
        step = denoising.state.step_index
        if self._asked_step != step:
            self._asked_step = step
            source.ask(step, model_input(model, denoising))

    def begins_step(self, now: float) -> None:
        """Note the start of the next step and the duration of the last one."""
        self.step_s, self._step_began_at = now - self._step_began_at, now

    def note_wait(self, now: float) -> None:
        """Start the wait for residuals after the first half of the next step, or end it once they have arrived."""
        if self.awaits_residuals and not self.may_advance:
            self._awaits_since = now if self._awaits_since is None else self._awaits_since
        elif self._awaits_since is not None:
            step = self._next_step
            self.residual_waits_s[step] = self.residual_waits_s.get(step, 0.0) + now - self._awaits_since
            self._awaits_since = None

    def thin_if_asked(self, model: DiffusionModel) -> None:
        """Thin the steps as requested since the last step, if they are still ahead."""
        steps, self._asked_steps = self._asked_steps, ()
        if steps and self.denoising is not None:
            thin(model, self.denoising, steps)

    def forget_step(self) -> None:
        """Drop the residuals and the encoding of the step just taken."""
        self.residuals = self._taken = self.encoding = None

    def tell_step(self) -> None:
        """Report the step just taken to the listener. Raises any exception of the listener."""
        denoising, listener = self.begun, self.listener
        step, request = denoising.state.step_index, denoising.request
        if step in request.capture_steps and not denoising.done and not denoising.is_thinned:
            latent = denoising.schedule.to_variance_preserving(denoising.state).clone()
            listener.captured(step, denoising.schedule.sigmas[step], latent)
        interval = request.preview_interval_steps
        # A thinned request advances several steps at a time.
        passed = step // interval - self._told_step // interval if interval > 0 else 0
        preview_due = passed > 0 and not denoising.done
        self._told_step = step
        listener.stepped(step, denoising.predicted_clean if preview_due else None)

    def finished(self, now: float) -> FinishedDenoising:
        """Return the final latent with its times."""
        denoising = self.begun
        return FinishedDenoising(
            latent=denoising.state.latent,
            first_step=denoising.request.start.first_step,
            step_count=denoising.schedule.step_count,
            taken_count=denoising.schedule.order.count_from(denoising.request.start.first_step),
            thinned_steps=denoising.schedule.order.thinned,
            prompt_truncated=denoising.prompt_truncated,
            queued_at=self.queued_at,
            started_at=self.started_at,
            prepared_at=self.prepared_at,
            finished_at=now,
            device_s=self.device_s,
            lora_patch_step=self.lora_patch_step,
            residual_waits_s=self.residual_waits_s,
            paired_step_count=self.paired_steps,
            reused_count=denoising.reused_count,
        )
