"""When a picture yields its place in the batch to whoever is on the way."""

from pentimento.policies.step_batching import yielding_steps


class PlaceWatch:
    """Of one picture. Times in seconds on one clock; a step takes as long as the last one did."""

    def __init__(self, step_count: int, started_at: float) -> None:
        self._step_count = step_count
        self._last_at = started_at
        self._yielded = False

    def yields(self, step: int, now: float) -> bool:
        """Whether it does after this step; True once. The last step is always late enough."""
        step_s, self._last_at = now - self._last_at, now
        if self._yielded:
            return False
        self._yielded = self._step_count - step <= yielding_steps(step_s)
        return self._yielded
