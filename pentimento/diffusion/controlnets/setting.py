"""How one ControlNet acts on one image: how strongly, and in which steps."""

import math
from dataclasses import dataclass, replace

from pentimento.domain.errors import InvalidArgument

# diffusers names no limit; beyond this half precision leaves its range.
MAX_SCALE = 100.0


@dataclass(frozen=True)
class ControlSetting:
    """`scale` multiplies the residuals. It acts in steps that lie wholly between two shares of the schedule,
    0..1."""

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
        """Return whether it acts in a step of a schedule of `step_count` steps, by diffusers' rule. Steps are counted
        from the schedule's beginning, also where the cache lets an image start later; see `over_steps_from`."""
        return step_index / step_count >= self.start_fraction and (step_index + 1) / step_count <= self.end_fraction

    def over_steps_from(self, first_step: int, step_count: int) -> "ControlSetting":
        """Return the setting of a request that brings its own image and so starts at `first_step`: its shares are those
        of the steps that are left, as in diffusers' pipelines from an image."""
        left = step_count - first_step
        acting = [first_step + step for step in range(left) if self.acts_at(step, left)]
        # Where no step is within the shares: those of half the last step, in which none is either.
        first, end = (acting[0], acting[-1] + 1) if acting else (step_count - 0.5, step_count)
        return replace(self, start_fraction=first / step_count, end_fraction=end / step_count)

    def acting_steps(self, first_step: int, step_count: int) -> range:
        """Return the steps in which it acts, of those from `first_step` on."""
        acting = [step for step in range(first_step, step_count) if self.acts_at(step, step_count)]
        return range(acting[0], acting[-1] + 1) if acting else range(0)
