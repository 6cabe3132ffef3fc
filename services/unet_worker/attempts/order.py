"""Define the values of Execute's requests and outcomes, the pace of their progress, and when they yield their batch
slots."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pentimento.domain.execution import AttemptResult, ControlNetEndpoint, LatentParallelPeer
from pentimento.domain.generation import Attempt, CacheGrant, GenerationSpec, Route
from pentimento.domain.thinned_steps import taken_count
from pentimento.policies.step_batching import yields_in_s
from pentimento.wire.tensors import WireTensor

# Interval of a dataplane's progress for an attempt without a waiting client.
SELDOM_S = 1.0


class MidwayThinning:
    """Hold the steps that a running attempt is limited to; the model runner listens."""

    def __init__(self) -> None:
        self._steps: tuple[int, ...] = ()
        self._listener: Callable[[tuple[int, ...]], None] | None = None

    def ask(self, steps: tuple[int, ...]) -> None:
        self._steps = steps
        if self._listener is not None:
            self._listener(steps)

    def listen(self, listener: Callable[[tuple[int, ...]], None]) -> None:
        self._listener = listener
        if self._steps:
            listener(self._steps)


@dataclass(frozen=True)
class ExecuteOrder:
    """Hold an ExecuteRequest in domain values; `deadline_remaining_ms` 0 means none. `notes` are the notes so far, for
    the result."""

    attempt: Attempt
    spec: GenerationSpec
    route: Route
    worker_generation: int
    deadline_remaining_ms: int = 0
    preview_interval_steps: int = 0
    cache_grant: CacheGrant | None = None
    image_format: str = "png"
    # JPEG or WebP quality, 0 to 100; None: the encoder's default.
    encoding_quality: int | None = None
    return_latents: bool = False
    # The worker that computes the other half of the guidance; None for no peer.
    peer: LatentParallelPeer | None = None
    # Where the spec's ControlNets are served; several of one name are replicas, to be tried in this order.
    controlnet_endpoints: tuple[ControlNetEndpoint, ...] = ()
    notes: tuple[str, ...] = ()
    # The journal of the attempt's epoch.
    journal_id: str = ""
    cache_thinned_picture: bool = False
    # No client waits for progress: messages without a preview come at most once in `SELDOM_S`.
    omit_progress: bool = False
    # Used when a client waits for progress.
    progress_interval_ms: int = 0
    asked_steps: MidwayThinning = field(default_factory=MidwayThinning, compare=False, repr=False)

    def progress_pace(self, least_s: float) -> "ProgressPace":
        """Return the pace of progress: one message in `least_s`, or in the order's interval if that is longer."""
        asked_s = SELDOM_S if self.omit_progress else self.progress_interval_ms / 1000
        return ProgressPace(max(least_s, asked_s), ends=not self.omit_progress)


class ProgressPace:
    """Choose the progress messages of an attempt: at most one in `interval_s`, counting previews, which are all sent;
    and the last step's if `ends`."""

    def __init__(self, interval_s: float, *, ends: bool = True) -> None:
        self._interval_s = interval_s
        self._ends = ends
        self._next_at = 0.0

    def sends(self, step: int, step_count: int, now: float, *, previewed: bool = False) -> bool:
        """Return whether this step's own message is sent, and note the time. `previewed`: it comes with a preview."""
        is_due = now >= self._next_at or (self._ends and step >= step_count)
        if is_due or previewed:
            self._next_at = now + self._interval_s
        return is_due and not previewed


@dataclass(frozen=True)
class AttemptOutcome:
    """Hold a finished attempt; the final latents only if they were requested."""

    result: AttemptResult
    final_latents: WireTensor | None = None


class StepPace:
    def __init__(self) -> None:
        self.step_s = 0.0


class PlaceWatch:
    """Predict when one request yields its place. Times are in seconds on one clock. A future step takes the mean of the
    request's steps so far, since single ones may be noticed late and the next one right after. Before the first step it
    takes as long as those of the previous request."""

    def __init__(
        self, first_step: int, step_count: int, started_at: float, pace: StepPace, thinned_steps: tuple[int, ...] = ()
    ) -> None:
        self._first_step = first_step
        self._step_count = step_count
        self._started_at = started_at
        self._pace = pace
        self._thinned_steps = thinned_steps

    def yields_in_s(self, step: int, now: float) -> float | None:
        """Return the seconds until the request yields, given that this step is next; None if it runs that step first,
        and before the first step of a worker's first request."""
        left = self._count_from(step)
        taken = self._count_from(self._first_step) - left
        step_s = (now - self._started_at) / taken if taken else self._pace.step_s
        if not left:
            self._pace.step_s = step_s
            return 0.0
        return yields_in_s(left, step_s) if step_s else None

    def _count_from(self, step: int) -> int:
        return taken_count(self._thinned_steps, self._step_count, step)
