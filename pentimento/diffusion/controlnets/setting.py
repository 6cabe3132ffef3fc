"""Set the strength and the steps of one ControlNet's action on one image."""

import math
from dataclasses import dataclass, replace

from pentimento.domain.errors import InvalidArgument

# diffusers sets no limit; above this, half precision overflows.
MAX_SCALE = 100.0


@dataclass(frozen=True)
class ControlSetting:
    """Scale the residuals by `scale`, in steps that lie completely between two fractions of the schedule, 0..1."""

    scale: float = 1.0
    start_fraction: float = 0.0
    end_fraction: float = 1.0

    def check(self, field: str) -> None:
        """Raise InvalidArgument naming the part of `field` that is out of bounds."""
        if not (math.isfinite(self.scale) and abs(self.scale) <= MAX_SCALE):
            wanted = f"must be a number between -{MAX_SCALE:g} and {MAX_SCALE:g}, got {self.scale}"
            raise InvalidArgument.of(f"{field}.conditioning_scale", wanted)
        if not 0.0 <= self.start_fraction < 1.0:
            raise InvalidArgument.of(f"{field}.start_fraction", f"must be in 0..1, below 1, got {self.start_fraction}")
        if not self.start_fraction < self.end_fraction <= 1.0:
            wanted = f"must be above start_fraction and at most 1, got {self.end_fraction}"
            raise InvalidArgument.of(f"{field}.end_fraction", wanted)

    def acts_at(self, step_index: int, step_count: int) -> bool:
        """Return whether it acts in a step of a schedule of `step_count` steps, by diffusers' rule. Steps count from
        the schedule's beginning, even if the cache lets an image start later; see `over_steps_from`."""
        return step_index / step_count >= self.start_fraction and (step_index + 1) / step_count <= self.end_fraction

    def over_steps_from(self, first_step: int, step_count: int) -> "ControlSetting":
        """Return the setting of a request that starts from its own image at `first_step`: the fractions apply to the
        remaining steps, as in diffusers' pipelines from an image."""
        left = step_count - first_step
        acting = [first_step + step for step in range(left) if self.acts_at(step, left)]
        # If no step acts: the second half of the last step, which contains no whole step either.
        first, end = (acting[0], acting[-1] + 1) if acting else (step_count - 0.5, step_count)
        return replace(self, start_fraction=first / step_count, end_fraction=end / step_count)

    def acting_steps(self, first_step: int, step_count: int) -> range:
        """Return the steps from `first_step` on at which it acts."""
        acting = [step for step in range(first_step, step_count) if self.acts_at(step, step_count)]
        return range(acting[0], acting[-1] + 1) if acting else range(0)
