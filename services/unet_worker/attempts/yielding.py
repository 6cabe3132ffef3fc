"""When a picture yields its place in the batch to whoever is on the way."""

from pentimento.domain.thinned_steps import taken_count
from pentimento.policies.step_batching import yielding_steps


class PlaceWatch:
    """Of one picture. Times in seconds on one clock; a step to come takes as long as those before it did on average:
    single ones may be noticed late, and the next then right after."""

    def __init__(
        self, first_step: int, step_count: int, started_at: float, thinned_steps: tuple[int, ...] = ()
    ) -> None:
        self._first_step = first_step
        self._step_count = step_count
        self._started_at = started_at
        self._thinned_steps = thinned_steps
        self._yielded = False

    def yields(self, step: int, now: float) -> bool:
        """Whether it does after this step; True once. The last step is always late enough."""
        if self._yielded:
            return False
        left = taken_count(self._thinned_steps, self._step_count, step)
        taken = taken_count(self._thinned_steps, self._step_count, self._first_step) - left
        step_s = (now - self._started_at) / max(taken, 1)
        self._yielded = left <= yielding_steps(step_s)
        return self._yielded
