"""The steps of a picture that was thinned: from one step of its schedule on these alone are taken."""

from itertools import pairwise


def check_thinned_steps(steps: tuple[int, ...], step_count: int) -> None:
    """Raise ValueError unless `steps` are ascending steps of a schedule of `step_count`, one at the least."""
    if not steps or steps[0] < 0 or steps[-1] >= step_count:
        raise ValueError(f"must lie between 0 and {step_count - 1}, and be there")
    if any(later <= step for step, later in pairwise(steps)):
        raise ValueError("must be ascending")


def taken_count(steps: tuple[int, ...], first_step: int = 0) -> int:
    """Return how many steps a picture takes from `first_step` on: all before `steps[0]`, and `steps`."""
    return steps[0] - first_step + len(steps)
