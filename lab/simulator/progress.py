"""Report the progress of simulated attempts, and thin them. If steps may be skipped, the dataplane receives each
attempt's progress as it does live, and its `ThinAttempt` applies at a step boundary."""

from collections.abc import Callable, Sequence

from lab.emulation.attempt_steps import AttemptSteps
from lab.emulation.jobs import EmulatedJob
from pentimento.dataplane import events
from pentimento.dataplane.effects import ThinAttempt
from pentimento.dataplane.events import AttemptKey

# Between two messages of one attempt, as workers send them.
PROGRESS_INTERVAL_S = 0.1


class SimulatedProgress:
    """The progress of all running attempts. Events go to `submit`."""

    def __init__(self, submit: Callable[[events.Event], None]) -> None:
        self._submit = submit
        self._steps: dict[AttemptKey, AttemptSteps] = {}
        self._told_at: dict[AttemptKey, float] = {}

    def begin(self, key: AttemptKey, steps: AttemptSteps) -> None:
        """Changes state: an attempt was given to a device."""
        self._steps[key] = steps

    def end(self, key: AttemptKey) -> tuple[int, ...]:
        """End an attempt. Return the steps it took if it was thinned; empty for all."""
        self._told_at.pop(key, None)
        steps = self._steps.pop(key, None)
        return steps.thinned_steps if steps is not None else ()

    def thin(self, effect: ThinAttempt) -> None:
        """Changes state: the attempt takes these steps alone, from the next boundary on; one that is over does not."""
        steps = self._steps.get((effect.request_id, effect.fencing_token))
        if steps is not None:
            steps.thin(effect.thinned_steps)

    def stepped(self, batch: Sequence[EmulatedJob[AttemptKey]], now: float) -> None:
        """Changes state: these took a step, which ended now."""
        for job in batch:
            steps = self._steps.get(job.owner)
            if steps is None or job.stopped:
                continue
            if job.left and now >= self._told_at.get(job.owner, 0.0) + PROGRESS_INTERVAL_S:
                self._told_at[job.owner] = now
                self._submit(events.AttemptProgressed(*job.owner, steps.reached(job.left)))
            job.left = steps.left_after(job.left)
