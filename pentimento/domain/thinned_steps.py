"""Steps of a thinned image, which skips steps of its schedule from one step on, and shares of skippable steps."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise


def check_thinned_steps(steps: tuple[int, ...], step_count: int) -> None:
    """Raise ValueError unless `steps` are ascending steps of a schedule of `step_count`, one at the least."""
    if not steps or steps[0] < 0 or steps[-1] >= step_count:
        raise ValueError(f"must lie between 0 and {step_count - 1}, and be there")
    if any(later <= step for step, later in pairwise(steps)):
        raise ValueError("must be ascending")


def taken_steps(steps: tuple[int, ...], step_count: int, first_step: int = 0) -> tuple[int, ...]:
    """Return the steps that an image takes from `first_step` on: all before `steps[0]`, and `steps`; all of
    `step_count` where `steps` is empty."""
    return (*range(first_step, steps[0]), *steps) if steps else tuple(range(first_step, step_count))


def taken_count(steps: tuple[int, ...], step_count: int, first_step: int = 0) -> int:
    """Return the number of steps that an image takes from `first_step` on, which may be any step."""
    if not steps:
        return step_count - first_step
    return max(steps[0] - first_step, 0) + len(steps) - bisect_left(steps, first_step)


def bridge_steps(step: int, renoised_steps: int, retaken_steps: int) -> tuple[int, ...]:
    """Return the steps of a start that is noised again by `renoised_steps` before it enters the schedule at `step`:
    `retaken_steps` steps, evenly spread, then `step` itself. Empty where nothing is noised again."""
    first = step - renoised_steps
    places = (first + round(place * renoised_steps / retaken_steps) for place in range(retaken_steps))
    return (*places, step) if renoised_steps else ()


def thinned_note(steps: tuple[int, ...], step_count: int) -> str:
    """Return the note about skipped steps; empty where an image took all."""
    if not steps:
        return ""
    return f"steps left out: from step {steps[0]} on {len(steps)} of {step_count - steps[0]} were taken"


def reused_note(reused_count: int, taken_count: int) -> str:
    """Return the note about steps that reused deep features; empty where none did."""
    return f"deep features reused in {reused_count} of {taken_count} steps" if reused_count else ""


@dataclass(frozen=True)
class ThinnableSteps:
    """Sums over requests that a pool started from noise: the shares (0..1) of their steps that may be skipped under
    load, and of an image's quality that is lost then."""

    request_count: int = 0
    spare_shares: float = 0.0
    lost_shares: float = 0.0

    def __add__(self, other: "ThinnableSteps") -> "ThinnableSteps":
        return ThinnableSteps(
            self.request_count + other.request_count,
            self.spare_shares + other.spare_shares,
            self.lost_shares + other.lost_shares,
        )

    def since(self, before: "ThinnableSteps") -> "ThinnableSteps":
        """Return the sums since `before`; never negative, despite the rounding of sums."""
        return ThinnableSteps(
            self.request_count - before.request_count,
            max(0.0, self.spare_shares - before.spare_shares),
            max(0.0, self.lost_shares - before.lost_shares),
        )


NO_STEPS = ThinnableSteps()
