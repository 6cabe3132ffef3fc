"""Define the engine's interface: listeners of one request, observers of the batches."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from pentimento.diffusion.families.model import BatchKey
from pentimento.domain.errors import PentimentoError


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
        """Handle a whole step of a batch of requests of that size, `seconds` after the step before, waits included;
        `alone` if the engine runs no other request."""

    def preempted(self, request_count: int) -> None:
        """Handle the preemption of `request_count` ready requests by more urgent ones."""

    def ran_out_of_memory(self, request_count: int) -> None:
        """Handle a forward pass of `request_count` requests that the device had no memory for."""
