"""Predict when a running request yields its batch slot to a request on the way."""

from pentimento.domain.thinned_steps import taken_count
from pentimento.policies.step_batching import yields_in_s


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
