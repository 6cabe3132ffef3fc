"""Decide the devices and batch sizes of each model: no device is idle, and equal demand gives equal plans.

Solvers return any of the best solutions, and slight noise in the demand changes the best one. So the rates of a
solution are kept, but its units are counted again from the devices of each model: one pool a model, in the smallest
batches that carry the load.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

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
    shares = (_kind_of_devices(problem, solution, kind) for kind in problem.devices)
    return {
        (share.kind, model): count for share in shares for model, count in share.filled(may_load).items() if count > 0
    }


def _kind_of_devices(problem: AllocationProblem, solution: AllocationSolution, kind: str) -> "_DevicesOfKind":
    fitting = [component for component in problem.components if kind in component.costs]
    share = _DevicesOfKind(kind, problem.devices[kind], {component.name: 0 for component in fitting})
    works = _works(problem, solution)
    for component in fitting:
        units = {p: n for p, n in solution.units.items() if (p.component, p.kind) == (component.name, kind)}
        speeds = {cost.batch_size: cost.throughput for cost in component.costs[kind]}
        held = problem.held.get((kind, component.name), 0)
        share.held[component.name] = held
        most = max(units, key=lambda p: works.get(p, 0.0), default=None)
        share.speeds[component.name] = speeds[most.batch_size] if most is not None else max(speeds.values())
        share.work[component.name] = work_of(problem, solution, component.name, kind)
        # Solutions may give a pool surplus units, and a device that loads carries less.
        busy = sum(min(n, math.ceil(works.get(p, 0.0) / speeds[p.batch_size] - 1e-6)) for p, n in units.items())
        is_plain = busy <= held and not _runs_beside(problem, component.name)
        share.counts[component.name] = busy if is_plain else sum(units.values())
    return share


def _works(problem: AllocationProblem, solution: AllocationSolution) -> dict[PlannedPool, float]:
    """Return the whole runs a second on the path of requests, by pool."""
    routes = {route.name: route for route in problem.routes}
    found: dict[PlannedPool, float] = {}
    for course, rate in solution.rates.items():
        for use, pool in zip(routes[course.route].on_path, course.pools, strict=True):
            found[pool] = found.get(pool, 0.0) + rate * use.work
    return found


def _runs_beside(problem: AllocationProblem, component: str) -> bool:
    return any(use.component == component and use.path == 0.0 for route in problem.routes for use in route.uses)


def work_of(problem: AllocationProblem, solution: AllocationSolution, component: str, kind: str = "") -> float:
    """Return the whole runs a second that a component must carry, on devices of `kind` if it is given. Work aside
    counts on any kind."""
    routes = {route.name: route for route in problem.routes}
    found = 0.0
    for course, rate in solution.rates.items():
        uses = [use for use in routes[course.route].uses if use.component == component]
        there = not kind or any((pool.component, pool.kind) == (component, kind) for pool in course.pools)
        found += sum(rate * use.work for use in uses if there or use.path == 0.0)
    return found


@dataclass
class _DevicesOfKind:
    """Share the devices of one kind among models. By model: `counts` of devices, `speeds` (runs a second of one
    device), `work` (runs a second of the demand), and the number of devices that hold it."""

    kind: str
    devices: int
    counts: dict[str, int]
    speeds: dict[str, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    def filled(self, may_load: bool) -> Mapping[str, int]:
        """Add the spare devices to `counts`, and return them. Changes `counts`."""
        if not self.counts:
            return {}
        needed, spare = dict(self.counts), self.devices - sum(self.counts.values())
        for model in self.counts:
            kept = min(max(self.held[model] - needed[model], 0), spare)
            self.counts[model] += kept
            spare -= kept
        for _ in range(spare):
            self.counts[self._busiest()] += 1
        while may_load and self._busy(busiest := self._busiest()) > _BUSY and (giver := self._giver(busiest, needed)):
            self.counts[giver] -= 1
            self.counts[busiest] += 1
        return self.counts

    def _busy(self, model: str, fewer: int = 0) -> float:
        """Return the utilisation of a model's devices without `fewer` devices."""
        carried = (self.counts[model] - fewer) * self.speeds[model]
        return self.work[model] / carried if carried > 0 else float(self.work[model] > 0)

    def _busiest(self) -> str:
        return max(self.counts, key=self._busy)

    def _giver(self, busiest: str, needed: Mapping[str, int]) -> str:
        """Return the least busy model that can give a device; empty if there is none."""
        can = (m for m, count in self.counts.items() if m != busiest and count > needed[m] and self._busy(m, 1) < _IDLE)
        return min(can, key=lambda model: self._busy(model, 1), default="")


def settle_sizes(
    problem: AllocationProblem, solution: AllocationSolution, counts: Counts, before: Counts
) -> dict[PlannedPool, int] | None:
    """Return the units of a plan that carries the solution's rates with one batch size a model and kind of device.

    `counts`: the devices of each model, with spare ones; `before`: the sizes in force, which stay unless they are too
    small, or smaller ones have much room. None if one size cannot keep the SLO.
    """
    for room in (_ROOM, 1.0 + 1e-6):
        found = [_Sizes(problem, solution, component, counts).settled(before, room) for component in problem.components]
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
        sum(waits_s[use.component] + use.path * felt_s.get(use.component, 0.0) for use in route.on_path)
        <= problem.slo_s * (1 + 1e-9)
        for route in problem.routes
        if route.name in used
    )


class _Sizes:
    """Choose the sizes of one component: for a limit of a batch's seconds, the highest throughput on each kind of
    device."""

    def __init__(
        self, problem: AllocationProblem, solution: AllocationSolution, component: Component, counts: Counts
    ) -> None:
        self._horizon_s = problem.horizon_s
        self._held = problem.held
        self._component = component
        self._units = {
            kind: counts[kind, component.name] for kind in component.costs if counts.get((kind, component.name), 0)
        }
        self._work = work_of(problem, solution, component.name)

    def settled(self, before: Counts, room: float) -> dict[str, BatchCost]:
        """Return the cost of a batch by kind of device."""
        enough: dict[str, BatchCost] = {}
        for enough in self._choices():
            if self._work <= room * self._carried(enough):
                break
        if not enough:
            return {}
        now = self._in_force(before)
        if now is None or self._work > room * self._carried(now):
            return enough
        is_larger = _slowest_s(now) > _slowest_s(enough)
        return now if is_larger and self._work > _MUCH_ROOM * self._carried(enough) else enough

    def _choices(self) -> Iterator[dict[str, BatchCost]]:
        """Yield the sizes by kind of device, small batches first."""
        costs = {kind: self._component.costs[kind] for kind in self._units}
        for limit_s in sorted({cost.latency_s for of_kind in costs.values() for cost in of_kind}):
            in_time = {kind: [c for c in of_kind if c.latency_s <= limit_s] for kind, of_kind in costs.items()}
            if all(in_time.values()):
                yield {kind: max(found, key=lambda cost: cost.throughput) for kind, found in in_time.items()}

    def _in_force(self, before: Counts) -> dict[str, BatchCost] | None:
        name = self._component.name
        found = {
            kind: cost
            for kind in self._units
            for cost in self._component.costs[kind]
            if cost.batch_size == before.get((kind, name))
        }
        return found if found.keys() == self._units.keys() else None

    def _carried(self, sizes: Mapping[str, BatchCost]) -> float:
        """Return the whole runs a second within the horizon. A device carries nothing while it loads."""
        lost = min(self._component.load_s / self._horizon_s, 1.0)
        new = {kind: max(0, n - self._held.get((kind, self._component.name), 0)) for kind, n in self._units.items()}
        return sum((n - lost * new[kind]) * sizes[kind].throughput for kind, n in self._units.items())


def _slowest_s(sizes: Mapping[str, BatchCost]) -> float:
    return max(cost.latency_s for cost in sizes.values())
