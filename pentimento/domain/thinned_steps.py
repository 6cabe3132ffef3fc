"""The steps of a picture that was thinned: from one step of its schedule on these alone are taken."""

from bisect import bisect_left
from itertools import pairwise


def check_thinned_steps(steps: tuple[int, ...], step_count: int) -> None:
    """Raise ValueError unless `steps` are ascending steps of a schedule of `step_count`, one at the least."""
    if not steps or steps[0] < 0 or steps[-1] >= step_count:
        raise ValueError(f"must lie between 0 and {step_count - 1}, and be there")
    if any(later <= step for step, later in pairwise(steps)):
        raise ValueError("must be ascending")


def taken_steps(steps: tuple[int, ...], step_count: int, first_step: int = 0) -> tuple[int, ...]:
    """Return the steps that a picture takes from `first_step` on: all before `steps[0]`, and `steps`; all of
    `step_count` where `steps` are none."""
    return (*range(first_step, steps[0]), *steps) if steps else tuple(range(first_step, step_count))


def taken_count(steps: tuple[int, ...], step_count: int, first_step: int = 0) -> int:
    """Return how many steps a picture takes from `first_step` on, which may be any step."""
    if not steps:
        return step_count - first_step
    return max(steps[0] - first_step, 0) + len(steps) - bisect_left(steps, first_step)


def thinned_note(steps: tuple[int, ...], step_count: int) -> str:
    """Return what a picture's notes say of the steps that it left out; empty where it took all."""
    if not steps:
        return ""
    return f"steps left out: from step {steps[0]} on {len(steps)} of {step_count - steps[0]} were taken"
