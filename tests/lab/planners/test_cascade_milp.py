from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.planners.cascade_milp import solve_by_milp
from pentimento.policies.serving.cascade_problem import CascadeProblem, CascadeSolution, grid, solve
from pentimento.policies.serving.costs import BatchCost
from pentimento.policies.serving.settings import DeferralCurve

COSTS = st.lists(st.integers(5, 400), min_size=1, max_size=4).map(
    lambda hundredths: tuple(BatchCost(2**power, s / 100) for power, s in enumerate(sorted(hundredths)))
)


SURE = DeferralCurve((0.0, 0.5, 1.0), (0.3, 0.8, 1.0))


def in_no_time(cost: BatchCost) -> float:
    return 0.0


def cascade() -> CascadeProblem:
    """One request a second on four devices; a light batch of one takes a second, a heavy one two."""
    light, heavy = (BatchCost(1, 1.0),), (BatchCost(1, 2.0),)
    return CascadeProblem(1.0, 4, 9.0, light, heavy, DeferralCurve(), (0.0, 0.5, 1.0), in_no_time, in_no_time)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, CascadeSolution(2, 2, 1, 1, 1.0, 3.0)),
        ({"demand": 2.0}, CascadeSolution(2, 2, 1, 1, 0.5, 3.0)),
        ({"thresholds": (0.0,)}, CascadeSolution(4, 0, 1, 1, 0.0, 1.0)),
        ({"slo_s": 2.5}, CascadeSolution(4, 0, 1, 1, 0.0, 1.0, feasible=False)),
        ({"slo_s": 2.5, "relaxed": True}, CascadeSolution(4, 0, 1, 1, 0.0, 1.0)),
        ({"demand": 8.0}, CascadeSolution(4, 0, 1, 1, 0.0, 1.0, feasible=False, admission_rate=0.5)),
        # Three in ten have a confidence of 0: two heavy devices carry those of up to three and a third a second.
        ({"demand": 2.0, "deferral": SURE}, CascadeSolution(2, 2, 1, 1, 0.0, 3.0)),
        ({"demand": 3.0, "deferral": SURE}, CascadeSolution(4, 0, 1, 1, 0.0, 1.0, feasible=False)),
    ],
)
def test_small_problems_have_the_solution_found_by_hand(changes: dict[str, object], expected: CascadeSolution) -> None:
    assert solve_by_milp(replace(cascade(), **changes)) == expected  # type: ignore[arg-type]


def test_every_device_of_a_model_runs_batches_of_the_chosen_size() -> None:
    """Two heavy devices in batches of one carry one a second. Of four each would carry one, but those are late, for one
    device as for all."""
    heavy = (BatchCost(1, 2.0), BatchCost(4, 4.0))
    problem = replace(cascade(), demand=2.0, slo_s=4.0, heavy=heavy, thresholds=(0.0, 0.5, 0.75, 1.0))

    assert solve_by_milp(problem) == CascadeSolution(2, 2, 1, 1, 0.5, 3.0)


@settings(max_examples=60, deadline=None)
@given(
    demand=st.floats(0.1, 40.0),
    device_count=st.integers(1, 16),
    slo_s=st.floats(0.5, 8.0),
    light=COSTS,
    heavy=COSTS,
    queue_s=st.floats(0.0, 2.0),
    power=st.floats(0.3, 3.0),
    relaxed=st.booleans(),
)
def test_the_threshold_is_the_one_that_enumeration_finds(
    demand: float,
    device_count: int,
    slo_s: float,
    light: tuple[BatchCost, ...],
    heavy: tuple[BatchCost, ...],
    queue_s: float,
    power: float,
    relaxed: bool,
) -> None:
    curve = DeferralCurve(grid(11), tuple(t**power for t in grid(11)))
    wait = lambda cost: queue_s  # noqa: E731
    problem = CascadeProblem(demand, device_count, slo_s, light, heavy, curve, grid(11), wait, wait, 0.1, relaxed)

    found = solve_by_milp(problem)

    # A solver of floating-point numbers may take what is short by a millionth.
    slack = replace(problem, demand=demand * (1 - 1e-5), slo_s=slo_s + 1e-5)
    exact = {(solution.threshold, solution.feasible) for solution in (solve(problem), solve(slack))}
    assert (found.threshold, found.feasible) in exact
