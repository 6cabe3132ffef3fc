"""Decide the devices and batch sizes of each model: no device is idle, and equal demand gives equal plans.

Solvers return any of the best solutions, and slight noise in the demand changes the best one. So the rates of a
solution are kept, but its units are counted again from the devices of each model: one pool a model, in the smallest
batches that carry the load.
"""

import math
from collections.abc import Iterator, Mapping

from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.joint.problem import AllocationProblem, AllocationSolution, Component, PlannedPool

# Utilisation above which a model receives devices, and below which another one, without them, gives some.
_BUSY = 0.8
_IDLE = 0.6
# Highest utilisation at which batches are large enough; below the second, smaller batches return.
_ROOM = 0.8
_MUCH_ROOM = 0.6

Counts = Mapping[tuple[str, str], int]
"""By (kind, model)."""


def share_out(problem: AllocationProblem, solution: AllocationSolution, may_load: bool) -> dict[tuple[str, str], int]:
    """Return the number of devices of each model, by (kind, model); they add up to all devices of the problem.

    Devices that the solution does not need keep their models. A device without a model of the problem goes to the
    busiest model that it can hold. With `may_load`, a device of a lightly loaded model also goes to a busy one.
    """
    return {
        (kind, model): count
        for kind in problem.devices
        for model, count in _filled(problem, solution, kind, may_load).items()
        if count > 0
    }


def _filled(problem: AllocationProblem, solution: AllocationSolution, kind: str, may_load: bool) -> dict[str, int]:
    """Return the number of devices of one kind by model."""
    fitting = [component for component in problem.components if kind in component.costs]
    needed = {one.name: _needed(problem, solution, one, kind) for one in fitting}
    work = {one.name: work_of(problem, solution, one.name, kind) for one in fitting}
    counts = {model: count for model, (count, _) in needed.items()}
    if not counts:
        return {}

    def busy(model: str, fewer: int = 0) -> float:
        """Return the utilisation of a model's devices without `fewer` devices."""
        carried = (counts[model] - fewer) * needed[model][1]
        return work[model] / carried if carried > 0 else float(work[model] > 0)

    spare = problem.devices[kind] - sum(counts.values())
    for model in counts:
        kept = min(max(problem.held.get((kind, model), 0) - counts[model], 0), spare)
        counts[model] += kept
        spare -= kept
    for _ in range(spare):
        counts[max(counts, key=busy)] += 1
    while may_load and busy(busiest := max(counts, key=busy)) > _BUSY:
        givers = [m for m in counts if m != busiest and counts[m] > needed[m][0] and busy(m, 1) < _IDLE]
        if not givers:
            break
        counts[min(givers, key=lambda model: busy(model, 1))] -= 1
        counts[busiest] += 1
    return counts


def _needed(
    problem: AllocationProblem, solution: AllocationSolution, component: Component, kind: str
) -> tuple[int, float]:
    """Return the devices of a kind that the solution needs for a component, and the runs a second of one device."""
    works: dict[PlannedPool, float] = {}
    for course, rate in solution.rates.items():
        for use, pool in zip(problem.route(course.route).uses, course.pools, strict=True):
            works[pool] = works.get(pool, 0.0) + rate * use.work
    units = {p: n for p, n in solution.units.items() if (p.component, p.kind) == (component.name, kind)}
    speeds = {cost.batch_size: cost.throughput for cost in component.costs[kind]}
    most = max(units, key=lambda p: works.get(p, 0.0), default=None)
    speed = speeds[most.batch_size] if most is not None else max(speeds.values())
    # Solutions may give a pool surplus units, and a device that loads carries less.
    busy = sum(min(n, math.ceil(works.get(p, 0.0) / speeds[p.batch_size] - 1e-6)) for p, n in units.items())
    return busy if busy <= problem.held.get((kind, component.name), 0) else sum(units.values()), speed


def work_of(problem: AllocationProblem, solution: AllocationSolution, component: str, kind: str = "") -> float:
    """Return the whole runs a second that a component must carry, on devices of `kind` if it is given."""
    return sum(
        rate * use.work
        for course, rate in solution.rates.items()
        for use, pool in zip(problem.route(course.route).uses, course.pools, strict=True)
        if use.component == component and kind in ("", pool.kind)
    )


def settle_sizes(
    problem: AllocationProblem, solution: AllocationSolution, counts: Counts, before: Counts
) -> dict[PlannedPool, int] | None:
    """Return the units of a plan that carries the solution's rates with one batch size a model and kind of device.

    `counts`: the devices of each model, with spare ones; `before`: the sizes in force, which stay unless they are too
    small, or smaller ones have much room. None if one size cannot keep the SLO.
    """
    for room in (_ROOM, 1.0 + 1e-6):
        found = [_settled(problem, solution, one, counts, before, room) for one in problem.components]
        felt_s = {
            component.name: max((cost.felt_s for cost in sizes.values()), default=0.0)
            for component, sizes in zip(problem.components, found, strict=True)
        }
        if keeps_slo(problem, solution, felt_s):
            return {
                PlannedPool(component.name, kind, cost.batch_size): counts[kind, component.name]
                for component, sizes in zip(problem.components, found, strict=True)
                for kind, cost in sizes.items()
            }
    return None


def keeps_slo(problem: AllocationProblem, solution: AllocationSolution, felt_s: Mapping[str, float]) -> bool:
    """Return whether every request of a solution is in time if a run with its wait takes `felt_s`, by component."""
    used, waits_s = {course.route for course in solution.rates}, {one.name: one.wait_s for one in problem.components}
    return all(
        sum(waits_s[use.component] + use.path * felt_s.get(use.component, 0.0) for use in route.uses)
        <= problem.slo_s * (1 + 1e-9)
        for route in problem.routes
        if route.name in used
    )


def _settled(
    problem: AllocationProblem,
    solution: AllocationSolution,
    component: Component,
    counts: Counts,
    before: Counts,
    room: float,
) -> dict[str, BatchCost]:
    """Return the cost of a component's batch by kind of device: the smallest batches that carry its work within `room`,
    or the ones in force."""
    units = {kind: counts[kind, component.name] for kind in component.costs if counts.get((kind, component.name), 0)}
    work = work_of(problem, solution, component.name)
    # A device carries nothing while it loads.
    new = {kind: max(0, n - problem.held.get((kind, component.name), 0)) for kind, n in units.items()}
    carrying = {kind: n - component.lost_units(kind, new[kind], problem.horizon_s) for kind, n in units.items()}

    def carried(sizes: Mapping[str, BatchCost]) -> float:
        """Return the whole runs a second within the horizon."""
        return sum(carrying[kind] * sizes[kind].throughput for kind in units)

    enough: dict[str, BatchCost] = {}
    for enough in _choices({kind: component.costs[kind] for kind in units}):
        if work <= room * carried(enough):
            break
    sizes = {kind: before.get((kind, component.name)) for kind in units}
    now = {kind: cost for kind in units for cost in component.costs[kind] if cost.batch_size == sizes[kind]}
    if not enough or now.keys() != units.keys() or work > room * carried(now):
        return enough
    is_larger = _slowest_s(now) > _slowest_s(enough)
    return now if is_larger and work > _MUCH_ROOM * carried(enough) else enough


def _choices(costs: Mapping[str, tuple[BatchCost, ...]]) -> Iterator[dict[str, BatchCost]]:
    """Yield batches by kind of device, small ones first: for each limit of their seconds, the highest throughput."""
    for limit_s in sorted({cost.latency_s for of_kind in costs.values() for cost in of_kind}):
        in_time = {kind: [c for c in of_kind if c.latency_s <= limit_s] for kind, of_kind in costs.items()}
        if all(in_time.values()):
            yield {kind: max(found, key=lambda cost: cost.throughput) for kind, found in in_time.items()}


def _slowest_s(sizes: Mapping[str, BatchCost]) -> float:
    return max(cost.latency_s for cost in sizes.values())
