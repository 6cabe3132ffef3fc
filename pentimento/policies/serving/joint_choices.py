"""Which pools a route may go through: those that keep the SLO, without those that no route needs."""

import itertools
from collections.abc import Iterable, Iterator

from pentimento.policies.serving.costs import BatchCost
from pentimento.policies.serving.joint_problem import Component, JointProblem, PlannedPool, Use

Path = tuple[Use, ...]
Pools = tuple[PlannedPool, ...]
Speeds = tuple[float, ...]


def pools_in_time(problem: JointProblem, paths: Iterable[Path]) -> dict[Path, list[Pools]]:
    """Return the choices of pools for each path that keep the SLO. Left out are choices with a pool that no path needs:
    one for which every path has a choice on the same kinds of device that is no slower in any of its pools."""
    batches = {component.name: list(batches_of(problem, component)) for component in problem.components}
    waits_s = {component.name: component.wait_s for component in problem.components}
    found = {}
    for path in paths:
        left_s = (problem.slo_s - sum(waits_s[use.component] for use in path)) * (1 + 1e-9)
        found[path] = list(_choices_in_time([(use.path, batches[use.component]) for use in path], left_s))
    needed = {pool for choices in found.values() for pools in _fastest(choices) for pool in pools}
    return {path: [pools for pools, _ in choices if needed.issuperset(pools)] for path, choices in found.items()}


def least_s(problem: JointProblem, start: str) -> float:
    """Return the seconds that a request of that start takes by its quickest way, by the smallest batches and with the
    waits before them; 0 where it has no way."""
    quickest_s = {
        component.name: min(cost.felt_s for _, cost in batches)
        for component in problem.components
        if (batches := list(batches_of(problem, component)))
    }
    waits_s = {component.name: component.wait_s for component in problem.components}
    ways = [route.on_path for route in problem.routes if route.start == start]
    taken = [
        sum(waits_s[use.component] + use.path * quickest_s[use.component] for use in way)
        for way in ways
        if all(use.component in quickest_s for use in way)
    ]
    return min(taken, default=0.0)


def batches_of(problem: JointProblem, component: Component) -> Iterator[tuple[PlannedPool, BatchCost]]:
    """Yield the component's pools, and what their batches cost."""
    for kind in problem.devices:
        for cost in component.costs.get(kind, ()):
            yield PlannedPool(component.name, kind, cost.batch_size), cost


def _choices_in_time(
    path: list[tuple[float, list[tuple[PlannedPool, BatchCost]]]], left_s: float
) -> Iterator[tuple[Pools, Speeds]]:
    timed = [[(runs * cost.felt_s, pool, cost.throughput) for pool, cost in batches] for runs, batches in path]
    for steps in itertools.product(*timed):
        if sum(seconds for seconds, _, _ in steps) <= left_s:
            yield tuple(pool for _, pool, _ in steps), tuple(speed for _, _, speed in steps)


def _fastest(choices: list[tuple[Pools, Speeds]]) -> Iterator[Pools]:
    """Yield the choices that none on the same kinds of device outdoes: faster in one pool and no slower in any."""
    by_kinds: dict[tuple[str, ...], list[tuple[Pools, Speeds]]] = {}
    for pools, speeds in choices:
        by_kinds.setdefault(tuple(pool.kind for pool in pools), []).append((pools, speeds))
    for alike in by_kinds.values():
        # Whoever outdoes another comes before it.
        alike.sort(key=lambda choice: choice[1], reverse=True)
        kept: list[Speeds] = []
        for pools, speeds in alike:
            if not any(other != speeds and _is_no_slower(other, speeds) for other in kept):
                kept.append(speeds)
                yield pools


def _is_no_slower(speeds: Speeds, others: Speeds) -> bool:
    return all(speed >= other for speed, other in zip(speeds, others, strict=True))
