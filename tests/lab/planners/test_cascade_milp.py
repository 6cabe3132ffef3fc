from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.planners.cascade_milp import solve_by_milp
from pentimento.policies.plan.cascade_problem import CascadeProblem, CascadeSolution, grid, solve_cascade
from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.settings import DeferralCurve

COSTS = st.lists(st.integers(5, 400), min_size=1, max_size=4).map(
    lambda hundredths: tuple(BatchCost(2**power, s / 100) for power, s in enumerate(sorted(hundredths)))
)


SURE = DeferralCurve((0.0, 0.5, 1.0), (0.3, 0.8, 1.0))


# One request a second on four devices; a light batch of one takes a second, a heavy one two.
PROBLEM = CascadeProblem(
    1.0, 4, 9.0, ((BatchCost(1, 1.0),), (BatchCost(1, 2.0),)), (DeferralCurve(),), thresholds=(0.0, 0.5, 1.0)
)
ALL_LIGHT = CascadeSolution((4, 0), (1, 1), (1.0, 0.0), (0.0,), feasible=False)


BY_HAND: list[tuple[dict[str, object], CascadeSolution]] = [
    ({}, CascadeSolution((2, 2), (1, 1), (1.0, 1.0), (1.0,))),
    ({"demand": 2.0}, CascadeSolution((2, 2), (1, 1), (1.0, 0.5), (0.5,))),
    ({"thresholds": (0.0,)}, replace(ALL_LIGHT, feasible=True)),
    ({"slo_s": 2.5}, ALL_LIGHT),
    ({"demand": 8.0}, replace(ALL_LIGHT, admission_rate=0.5)),
    # Three in ten have a confidence of 0: two heavy devices carry those of up to three and a third a second.
    ({"demand": 2.0, "curves": (SURE,)}, CascadeSolution((2, 2), (1, 1), (1.0, 0.3), (0.0,))),
    ({"demand": 3.0, "curves": (SURE,)}, ALL_LIGHT),
]


def test_milp_small_problem_has_solution_by_hand() -> None:
    for changes, expected in BY_HAND:
        assert solve_by_milp(replace(PROBLEM, **changes)) == expected, changes  # type: ignore[arg-type]


def test_milp_every_device_runs_batches_of_chosen_size() -> None:
    """Two heavy devices in batches of one carry one a second. Of four each would carry one, but those are late, for one
    device as for all."""
    stages = ((BatchCost(1, 1.0),), (BatchCost(1, 2.0), BatchCost(4, 4.0)))
    problem = replace(PROBLEM, demand=2.0, slo_s=4.0, stages=stages, thresholds=(0.0, 0.5, 0.75, 1.0))

    assert solve_by_milp(problem) == CascadeSolution((2, 2), (1, 1), (1.0, 0.5), (0.5,))


@settings(max_examples=60, deadline=None)
@given(
    demand=st.floats(0.1, 40.0),
    device_count=st.integers(1, 16),
    slo_s=st.floats(0.5, 8.0),
    stages=st.tuples(COSTS, COSTS),
    queue_s=st.floats(0.0, 2.0),
    power=st.floats(0.3, 3.0),
)
def test_milp_threshold_equals_enumeration(
    demand: float,
    device_count: int,
    slo_s: float,
    stages: tuple[tuple[BatchCost, ...], tuple[BatchCost, ...]],
    queue_s: float,
    power: float,
) -> None:
    curve = DeferralCurve(grid(11), tuple(t**power for t in grid(11)))
    waits = tuple(tuple(replace(cost, wait_s=queue_s) for cost in stage) for stage in stages)
    problem = CascadeProblem(demand, device_count, slo_s, waits, (curve,), 0.1, grid(11))

    found = solve_by_milp(problem)

    # A solver of floating-point numbers may take a solution that is short by a millionth.
    slack = replace(problem, demand=demand * (1 - 1e-5), slo_s=slo_s + 1e-5)
    exact = {(solution.thresholds, solution.feasible) for solution in (solve_cascade(problem), solve_cascade(slack))}
    assert (found.thresholds, found.feasible) in exact
