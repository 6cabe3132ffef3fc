"""Solve cascades on a handful of devices: by hand, and against trying everything."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.policies.plan.cascade_problem import (
    CascadeProblem,
    CascadeSolution,
    first_stage_alone,
    grid,
    solve_cascade,
)
from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.settings import DeferralCurve
from tests.unit.policies.plan.fleets import SD15, TURBO

Stage = tuple[BatchCost, ...]

# One a second by a light device, half of one by a heavy one.
LIGHT_ONE, HEAVY_ONE = (BatchCost(1, 1.0),), (BatchCost(1, 2.0),)
PROBLEM = CascadeProblem(2.0, 6, 9.0, (LIGHT_ONE, HEAVY_ONE), (DeferralCurve(),), thresholds=grid(5))
FOUR = replace(PROBLEM, demand=1.0, device_count=4, thresholds=(0.0, 0.5, 1.0))
CURVE = DeferralCurve((0.0, 0.5, 1.0), (0.0, 0.3, 1.0))
# A discriminator that was measured from a threshold of 0.2 on: a tenth is deferred at the lowest one.
SOME = DeferralCurve((0.2, 0.5, 1.0), (0.1, 0.3, 1.0))
MIDDLE = {size: 4 * seconds for size, seconds in TURBO.items()}
LIGHT, MEDIUM, HEAVY = (tuple(BatchCost(size, table[size]) for size in (1, 2, 4)) for table in (TURBO, MIDDLE, SD15))
COSTS = st.lists(st.floats(0.05, 4.0), min_size=1, max_size=3).map(
    lambda seconds: tuple(BatchCost(2**power, s) for power, s in enumerate(sorted(seconds)))
)


def waiting(light_s: float, heavy_s: float) -> tuple[Stage, ...]:
    return (BatchCost(1, 1.0, light_s),), (BatchCost(1, 2.0, heavy_s),)


def found_for(problem: CascadeProblem) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
    """Return devices, batch sizes and thresholds of a feasible solution."""
    found = solve_cascade(problem)
    assert (found.feasible, found.admission_rate) == (True, 1.0)
    return found.counts, found.batch_sizes, found.thresholds


def test_grid_thresholds_are_evenly_spaced() -> None:
    assert grid(5) == (0.0, 0.25, 0.5, 0.75, 1.0)


SMALL = {
    "all deferred": (replace(PROBLEM, demand=2.0), (2, 4), (1, 1), 1.0),
    "a third light device": (replace(PROBLEM, demand=2.1), (3, 3), (1, 1), 0.5),
    "half deferred": (replace(PROBLEM, demand=3.0), (3, 3), (1, 1), 0.5),
    "a quarter deferred": (replace(PROBLEM, demand=4.0), (4, 2), (1, 1), 0.25),
    "nothing deferred": (replace(PROBLEM, demand=5.0), (6, 0), (1, 1), 0.0),
    "no demand": (replace(PROBLEM, demand=0.0), (1, 5), (1, 1), 1.0),
    "just enough devices": (replace(FOUR, demand=2.0), (2, 2), (1, 1), 0.5),
    "just the SLO": (replace(FOUR, slo_s=3.0), (1, 3), (1, 1), 1.0),
    "one threshold that defers nothing": (replace(FOUR, thresholds=(0.0,)), (4, 0), (1, 1), 0.0),
    "one that defers too many": (replace(FOUR, demand=3.0, thresholds=(0.5,)), (4, 0), (1, 1), 0.0),
    "equal thresholds: most to spare, then the quickest": (
        replace(FOUR, stages=((BatchCost(1, 1.0), BatchCost(2, 1.5)), (BatchCost(1, 2.0), BatchCost(2, 3.0)))),
        (1, 3),
        (2, 1),
        1.0,
    ),
    "equal latency: the smaller batch": (
        replace(FOUR, stages=((BatchCost(1, 1.0), BatchCost(2, 1.5)), (BatchCost(1, 2.0), BatchCost(2, 2.0)))),
        (1, 3),
        (2, 1),
        1.0,
    ),
    "batches that defer most": (
        replace(
            FOUR,
            demand=4.0,
            thresholds=grid(5),
            stages=((BatchCost(1, 1.0), BatchCost(4, 2.0)), (BatchCost(1, 2.0), BatchCost(2, 2.0))),
        ),
        (2, 2),
        (4, 2),
        0.5,
    ),
}


def test_solve_small_problems_find_best_by_hand() -> None:
    found = {name: found_for(row[0]) for name, row in SMALL.items()}

    assert found == {name: (counts, sizes, (threshold,)) for name, (_, counts, sizes, threshold) in SMALL.items()}


@pytest.mark.parametrize(
    ("changes", "latency_s"),
    [
        ({}, 3.0),
        ({"stages": waiting(0.5, 0.0)}, 3.5),
        ({"stages": waiting(0.0, 0.25)}, 3.25),
        ({"discriminator_s": 0.125}, 3.125),
        ({"stages": waiting(0.5, 0.25), "discriminator_s": 0.125}, 3.875),
        ({"demand": 5.0, "stages": waiting(0.5, 0.25)}, 3.75),
    ],
)
def test_solve_counts_models_waits_and_score_against_slo(changes: dict[str, object], latency_s: float) -> None:
    problem = replace(PROBLEM, **changes)  # type: ignore[arg-type]

    assert problem.latency_s([stage[0] for stage in problem.stages]) == pytest.approx(latency_s)
    assert solve_cascade(replace(problem, slo_s=latency_s + 1e-9)).feasible
    assert not solve_cascade(replace(problem, slo_s=latency_s - 0.001)).feasible


LATE = ((BatchCost(1, 1.0), BatchCost(4, 2.0), BatchCost(8, 9.0)), (BatchCost(2, 5.0), BatchCost(4, 6.0)))
QUEUED = ((BatchCost(1, 0.5, 1.0), BatchCost(2, 0.8, 1.0), BatchCost(4, 1.25, 1.0)), (BatchCost(1, 9.0),))


INFEASIBLE = {
    "most within the SLO": (LATE, 2.0, 24.0, 4, 0.5),
    "a smaller one within the SLO": (LATE, 1.99, 24.0, 1, 0.25),
    "the quickest where all are late": (LATE, 0.5, 24.0, 1, 0.25),
    "little demand": (LATE, 2.0, 3.0, 4, 1.0),
    "no demand": (LATE, 2.0, 0.0, 4, 1.0),
    "waits do not count": (QUEUED, 2.0, 100.0, 4, 6 * 3.2 / 100),
    "a smaller batch with waits": (QUEUED, 1.1, 100.0, 2, 6 * 2.5 / 100),
}


def test_solve_infeasible_problems_use_first_stage_alone() -> None:
    for name, (stages, slo_s, demand, batch, rate) in INFEASIBLE.items():
        problem = replace(PROBLEM, slo_s=slo_s, demand=demand, stages=stages)

        found = solve_cascade(problem)

        sizes = batch, stages[1][0].batch_size
        assert found == CascadeSolution((6, 0), sizes, (1.0, 0.0), (0.0,), False, pytest.approx(rate)), name
        assert found == first_stage_alone(problem), name


def test_solve_without_demand_but_late_admits_all() -> None:
    found = solve_cascade(replace(FOUR, demand=0.0, slo_s=0.5))

    assert (found.feasible, found.counts, found.admission_rate) == (False, (4, 0), 1.0)


def brute_force(problem: CascadeProblem) -> float | None:
    """Return the largest t over every x1, x2, b1, b2, t."""
    best = None
    tried = itertools.product(*problem.stages, problem.thresholds, range(1, problem.device_count + 1))
    for light, heavy, threshold, x1 in tried:
        deferred, x2 = problem.curves[0].share(threshold), problem.device_count - x1
        fits = x1 * light.throughput >= problem.demand * (1 - 1e-9)
        fits &= x2 * heavy.throughput >= problem.demand * deferred * (1 - 1e-9) and (x2 > 0 or deferred == 0)
        in_time = problem.latency_s((light, heavy)) <= problem.slo_s
        if fits and in_time and (best is None or threshold > best):
            best = threshold
    return best


@settings(max_examples=60, deadline=None)
@given(
    demand=st.floats(0.1, 40.0),
    device_count=st.integers(1, 12),
    slo_s=st.floats(0.5, 8.0),
    stages=st.tuples(COSTS, COSTS),
    queue_s=st.floats(0.0, 2.0),
    power=st.floats(0.3, 3.0),
    discriminator_s=st.sampled_from([0.0, 0.3, 1.5]),
)
def test_solve_two_models_equals_brute_force(
    demand: float,
    device_count: int,
    slo_s: float,
    stages: tuple[Stage, Stage],
    queue_s: float,
    power: float,
    discriminator_s: float,
) -> None:
    curve = DeferralCurve(grid(11), tuple(t**power for t in grid(11)))
    waits = tuple(tuple(replace(cost, wait_s=queue_s) for cost in stage) for stage in stages)
    problem = CascadeProblem(demand, device_count, slo_s, waits, (curve,), discriminator_s, grid(11))

    found = checked(problem)

    assert (found.thresholds[0] if found.feasible else None) == brute_force(problem)


def checked(problem: CascadeProblem) -> CascadeSolution:
    """Return the solution after a check of every constraint."""
    solution = solve_cascade(problem)
    assert sum(solution.counts) <= problem.device_count
    if solution.feasible:
        chosen = [
            next(cost for cost in stage if cost.batch_size == size)
            for stage, size in zip(problem.stages, solution.batch_sizes, strict=True)
        ]
        for count, cost, share in zip(solution.counts, chosen, solution.reached, strict=True):
            assert count * cost.throughput >= problem.demand * share * (1 - 1e-6)
        assert problem.latency_s(chosen) <= problem.slo_s
    return solution


@settings(deadline=None, max_examples=15)
@given(demand=st.floats(0.2, 30.0), devices=st.integers(2, 16), slo_s=st.floats(2.0, 12.0))
def test_solve_three_models_no_grid_point_is_better(demand: float, devices: int, slo_s: float) -> None:
    problem = CascadeProblem(demand, devices, slo_s, (LIGHT, MEDIUM, HEAVY), (CURVE, CURVE), 0.01)

    found = checked(problem)

    best = 0.0
    for costs in itertools.product(*problem.stages):
        if problem.latency_s(costs) > slo_s:
            continue
        for first, second in itertools.product(grid(20), grid(20)):
            reached = (1.0, CURVE.share(first), CURVE.share(first) * CURVE.share(second))
            needed = (
                math.ceil(demand * share / cost.throughput - 1e-9) for share, cost in zip(reached, costs, strict=True)
            )
            if sum(needed) <= devices:
                best = max(best, reached[1] + reached[2])
    assert found.gain >= best - 0.03


def test_solve_four_models_more_devices_reach_further() -> None:
    gains = [
        checked(CascadeProblem(4.0, devices, 15.0, (LIGHT, MEDIUM, MEDIUM, HEAVY), (CURVE,) * 3)).gain
        for devices in (1, 4, 8, 16)
    ]

    assert gains == sorted(gains) and gains[0] < gains[-1] <= 3.0


def test_solve_three_models_excess_demand_is_admitted_in_part() -> None:
    found = checked(CascadeProblem(1000.0, 2, 5.0, (LIGHT, MEDIUM, HEAVY), (CURVE, CURVE)))

    assert (found.feasible, found.counts, found.thresholds) == (False, (2, 0, 0), (0.0, 0.0))
    assert found.admission_rate == pytest.approx(2 * (4 / 0.22) / 1000)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_solve_curve_that_always_defers_reaches_staffed_stages(devices: int) -> None:
    found = checked(CascadeProblem(1.0, devices, 15.0, (LIGHT, MEDIUM, HEAVY), (SOME, SOME)))

    assert found.reached[0] == 1.0 and found.admission_rate == 1.0
    assert [count > 0 for count in found.counts] == [True, devices > 1, devices > 2]


def test_solve_unreached_stages_need_no_devices() -> None:
    found = checked(CascadeProblem(1.0, 1, 15.0, (LIGHT, MEDIUM, HEAVY), (CURVE, CURVE)))

    assert (found.feasible, found.counts, found.reached) == (True, (1, 0, 0), (1.0, 0.0, 0.0))


def test_solve_last_stage_too_slow_for_fewest_has_no_devices() -> None:
    """A tenth is always deferred; the device that is left carries one in two seconds, of a thousand or of eight."""
    some = DeferralCurve((0.0, 1.0), (0.1, 1.0))
    for demand in (1000.0, 8.0):
        found = checked(CascadeProblem(demand, 2, 15.0, ((BatchCost(1, 0.001),), HEAVY_ONE), (some,)))

        assert (found.counts, found.reached, found.thresholds) == ((2, 0), (1.0, 0.0), (0.0,)), demand


def test_solve_without_demand_staffs_every_stage() -> None:
    found = solve_cascade(CascadeProblem(0.0, 6, 9.0, (LIGHT, MEDIUM, HEAVY), (CURVE, CURVE)))

    assert min(found.counts) >= 1 and found.gain == 2.0


@pytest.mark.parametrize(("slo_s", "feasible"), [(5.3, True), (5.2, False)])
def test_solve_waits_of_all_stages_count(slo_s: float, feasible: bool) -> None:
    """Service takes half a second and two, the waits are one and one and a half, and the score a quarter."""
    stages = ((BatchCost(1, 0.5, 1.0),), (BatchCost(1, 2.0, 1.5),))

    solution = solve_cascade(CascadeProblem(0.1, 4, slo_s, stages, (CURVE,), 0.25))

    assert (solution.counts[1] > 0) is feasible
