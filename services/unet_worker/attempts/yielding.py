"""When a picture yields its place in the batch to whoever is on the way."""

from pentimento.domain.thinned_steps import taken_count
from pentimento.policies.step_batching import yields_in_s


class StepPace:
    """Of a model's pictures: seconds of a step of the one that ended last, what came before its first step included; 0
    before the first one."""

    def __init__(self) -> None:
        self.step_s = 0.0


class PlaceWatch:
    """Of one picture. Times in seconds on one clock; a step to come takes as long as those before it did on average:
    single ones may be noticed late, and the next then right after. Before the first one it takes as long as those of
    the picture before."""

    def __init__(
        self, first_step: int, step_count: int, started_at: float, pace: StepPace, thinned_steps: tuple[int, ...] = ()
    ) -> None:
        self._first_step = first_step
        self._step_count = step_count
        self._started_at = started_at
        self._pace = pace
        self._thinned_steps = thinned_steps

    def yields_in_s(self, step: int, now: float) -> float | None:
        """Return in how many seconds it does, now that this step comes next; None where it takes that one first, and
        before the first step of a worker's first picture."""
        left = self._count_from(step)
        taken = self._count_from(self._first_step) - left
        step_s = (now - self._started_at) / taken if taken else self._pace.step_s
        if not left:
            self._pace.step_s = step_s
            return 0.0
        return yields_in_s(left, step_s) if step_s else None

    def _count_from(self, step: int) -> int:
        return taken_count(self._thinned_steps, self._step_count, step)
