"""Count the steps that a batch of an emulated device takes without a change."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from lab.emulation.jobs import EmulatedJob, Owner
from pentimento.policies.step_batching import yields_in_s


@dataclass(slots=True, eq=False)
class StepSegment(Generic[Owner]):
    """Hold a batch and its next `step_count` steps of `step_s` seconds each; the first one begins at `began_s`."""

    batch: Sequence[EmulatedJob[Owner]]
    began_s: float
    step_s: float
    step_count: int

    @property
    def seconds(self) -> float:
        """Return the seconds of all steps."""
        return self.step_count * self.step_s

    @property
    def due_s(self) -> float:
        """Return when the last step ends."""
        return self.began_s + self.seconds

    def cut(self, now_s: float) -> bool:
        """End at the next step boundary, or after the first step if none has begun; return whether that is earlier."""
        elapsed_s = now_s - self.began_s
        done = max(1, math.ceil(elapsed_s / self.step_s - 1e-9)) if self.step_s > 0 else self.step_count
        if done >= self.step_count:
            return False
        self.step_count = done
        return True

    def yields(self) -> Iterator[tuple[float, int]]:
        """Yield the times at which attempts that end soon are to be reported, early enough for a successor to arrive in
        time, each with the steps that they have left."""
        for left in {job.left for job in self.batch if not job.yielded}:
            after_s = yields_in_s(left, self.step_s, self.step_count)
            if after_s is not None:
                yield self.began_s + after_s, left

    def end(self) -> None:
        """Count the steps, and their seconds, for each job. Changes state."""
        for job in self.batch:
            job.left = max(0, job.left - self.step_count)
            job.device_s += self.seconds / len(self.batch)
