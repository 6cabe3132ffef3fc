"""List the pools that a route may use, on a few devices."""

from dataclasses import replace

import pytest

from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.joint.problem import (
    AllocationProblem,
    Component,
    PlannedPool,
    PlannedRoute,
    Use,
    batches_of,
    pools_in_time,
)

# One, one and a half and two a second; on the small device half of that.
HEAVY = Component("heavy", {"gpu": (BatchCost(1, 1.0), BatchCost(3, 2.0), BatchCost(8, 4.0))})
MIXED = replace(HEAVY, costs={**HEAVY.costs, "small": (BatchCost(1, 2.0),)})
LIGHT = Component("light", {"gpu": (BatchCost(1, 0.5), BatchCost(4, 1.0))})
ALONE = (Use("heavy", 1.0, 1.0),)
CASCADE = (Use("light", 1.0, 1.0), Use("heavy", 0.5, 1.0))


def problem(slo_s: float, *components: Component, devices: tuple[str, ...] = ("gpu",)) -> AllocationProblem:
    return AllocationProblem({"noise": 1.0}, dict.fromkeys(devices, 4), components, (), slo_s)


def sizes(asked: AllocationProblem, *paths: tuple[Use, ...]) -> list[list[tuple[int, ...]]]:
    """Return the batch sizes of each choice, by path."""
    found = pools_in_time(asked, paths)
    assert list(found) == list(dict.fromkeys(paths))
    return [[tuple(pool.batch_size for pool in pools) for pools in choices] for choices in found.values()]


@pytest.mark.parametrize(("slo_s", "found"), [(0.99, []), (1.0, [(1,)]), (2.0, [(3,)]), (3.99, [(3,)]), (9.0, [(8,)])])
def test_pools_in_time_keep_batch_that_carries_most(slo_s: float, found: list[tuple[int, ...]]) -> None:
    assert sizes(problem(slo_s, HEAVY), ALONE) == [found]


def test_pools_in_time_count_component_wait() -> None:
    waiting = replace(HEAVY, wait_s=0.5)

    assert sizes(problem(2.49, waiting), ALONE) == [[(1,)]]
    assert sizes(problem(2.5, waiting), ALONE) == [[(3,)]]


def test_pools_in_time_count_batch_wait_by_path() -> None:
    """The batch takes two seconds, after half a second of waiting."""
    joined = replace(HEAVY, costs={"gpu": (BatchCost(1, 1.0, 1.0), BatchCost(3, 2.0, 0.5))})
    hit = (Use("heavy", 0.5, 0.5),)

    assert sizes(problem(2.49, joined), ALONE) == [[(1,)]]
    assert sizes(problem(2.5, joined), ALONE) == [[(3,)]]
    assert sizes(problem(1.25, joined), hit) == [[(3,)]]


def test_pools_in_time_multiply_latency_by_path() -> None:
    twice = (Use("heavy", 1.0, 2.0),)

    assert sizes(problem(2.0, HEAVY), twice) == [[(1,)]]
    assert sizes(problem(4.0, HEAVY), twice) == [[(3,)]]


def test_pools_in_time_needed_pool_serves_all_paths() -> None:
    """After the light model only batches of one are in time; alone, batches of eight are."""
    assert sizes(problem(4.0, LIGHT, HEAVY), ALONE) == [[(8,)]]
    assert sizes(problem(4.0, LIGHT, HEAVY), CASCADE) == [[(4, 3)]]
    assert sizes(problem(4.0, LIGHT, HEAVY), ALONE, CASCADE) == [[(3,), (8,)], [(4, 3)]]


def test_pools_in_time_keep_all_pareto_choices() -> None:
    """Within 2.5 s the larger light batch leaves a heavy batch of one, the smaller one a batch of three."""
    assert sizes(problem(2.5, LIGHT, HEAVY), CASCADE) == [[(1, 1), (1, 3), (4, 1)]]


def test_pools_in_time_slower_kind_is_another_choice() -> None:
    found = pools_in_time(problem(2.0, MIXED, devices=("gpu", "small")), [ALONE])

    assert found[ALONE] == [(PlannedPool("heavy", "gpu", 3),), (PlannedPool("heavy", "small", 1),)]


def test_batches_of_absent_kind_are_none() -> None:
    asked = problem(9.0, MIXED)

    assert [pool for pool, _ in batches_of(asked, MIXED)] == [PlannedPool("heavy", "gpu", size) for size in (1, 3, 8)]
    assert [cost for _, cost in batches_of(asked, MIXED)] == list(HEAVY.costs["gpu"])
    assert list(batches_of(problem(9.0, LIGHT, devices=("small",)), LIGHT)) == []


def test_bound_serves_all_by_best_way() -> None:
    """No request can be served from a start without a model."""
    routes = (
        PlannedRoute("a", "noise", (), 0.5),
        PlannedRoute("b", "noise", (), 0.9),
        PlannedRoute("c", "noise", (), 0.7),
        PlannedRoute("d", "image", (), 0.25),
    )
    problem = AllocationProblem({"noise": 2.0, "image": 4.0, "latent": 8.0}, {}, (), routes, 1.0, served_weight=3.0)

    assert problem.bound == 2.0 * 3.9 + 4.0 * 3.25
