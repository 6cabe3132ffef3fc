"""What becomes of devices that a solution of the joint problem does not need: nobody stays idle."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pentimento.policies.serving.joint_problem import JointProblem, JointSolution, PlannedPool

# A model this busy gets devices of others that are this little busy without them.
_BUSY = 0.8
_IDLE = 0.6


def shared_out(problem: JointProblem, solution: JointSolution, may_load: bool) -> dict[tuple[str, str], int]:
    """Return how many devices each model gets, by (kind, model), every device of the problem's counted.

    Those that the solution does not need keep their models. A device that holds none of them goes to the busiest model
    that it can hold; where `may_load`, one of a model with little to do also goes to a busy one.
    """
    shares = (_kind_of_devices(problem, solution, kind) for kind in problem.devices)
    return {
        (share.kind, model): count for share in shares for model, count in share.filled(may_load).items() if count > 0
    }


def _kind_of_devices(problem: JointProblem, solution: JointSolution, kind: str) -> "_DevicesOfKind":
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
        # Solutions may give a pool more than it needs; while a device loads it needs more than its work says.
        busy = sum(min(n, math.ceil(works.get(p, 0.0) / speeds[p.batch_size] - 1e-6)) for p, n in units.items())
        is_plain = busy <= held and not _runs_beside(problem, component.name)
        share.counts[component.name] = busy if is_plain else sum(units.values())
    return share


def _works(problem: JointProblem, solution: JointSolution) -> dict[PlannedPool, float]:
    """Whole runs a second of what is on the path of requests, by pool."""
    routes = {route.name: route for route in problem.routes}
    found: dict[PlannedPool, float] = {}
    for course, rate in solution.rates.items():
        for use, pool in zip(routes[course.route].on_path, course.pools, strict=True):
            found[pool] = found.get(pool, 0.0) + rate * use.work
    return found


def _runs_beside(problem: JointProblem, component: str) -> bool:
    return any(use.component == component and use.path == 0.0 for route in problem.routes for use in route.uses)


def work_of(problem: JointProblem, solution: JointSolution, component: str, kind: str = "") -> float:
    """Return the whole runs a second that a component has to carry, on devices of one kind where that is named. Work
    beside requests counts as if any kind did it."""
    routes = {route.name: route for route in problem.routes}
    found = 0.0
    for course, rate in solution.rates.items():
        uses = [use for use in routes[course.route].uses if use.component == component]
        there = not kind or any((pool.component, pool.kind) == (component, kind) for pool in course.pools)
        found += sum(rate * use.work for use in uses if there or use.path == 0.0)
    return found


@dataclass
class _DevicesOfKind:
    """Devices of one kind among models: how many each has, what one carries, what all must carry, what they hold."""

    kind: str
    devices: int
    counts: dict[str, int]
    speeds: dict[str, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    def filled(self, may_load: bool) -> Mapping[str, int]:
        """Changes `counts`, and returns them."""
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
        """The utilisation of a model's devices with so many fewer of them."""
        carried = (self.counts[model] - fewer) * self.speeds[model]
        return self.work[model] / carried if carried > 0 else float(self.work[model] > 0)

    def _busiest(self) -> str:
        return max(self.counts, key=self._busy)

    def _giver(self, busiest: str, needed: Mapping[str, int]) -> str:
        """A model that can do with a device less than it has; empty where there is none."""
        can = (m for m, count in self.counts.items() if m != busiest and count > needed[m] and self._busy(m, 1) < _IDLE)
        return min(can, key=lambda model: self._busy(model, 1), default="")
