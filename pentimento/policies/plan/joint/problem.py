"""State the allocation problem: every way to generate an image, on every kind of device.

It is a mixed integer linear program (`program`).

A *route* is a way to generate an image: the heavy model from noise, a cascade at one threshold, a latent resumed, an
image refined by a small model. A *component* is a model that a device holds. A *pool* is a component in batches of one
size on devices of one kind; a *course* is a route through certain pools that keeps the SLO. The part of the problem
with ControlNets and LoRAs is solved after it, for the models of the solution (`plan.residents`): their loads take no
device, so that no plan of models is better for them.

    max  sum_i rate_i * (served_weight + quality of its route - price of its device-seconds)
                                                                      i: courses; p: pools; n_p: units of a pool
    rate     sum of rate_i over the courses of a start <= the demand of that start
    work     sum_i rate_i * work_ip <= (n_p - sum_s new_ps * load_s / horizon_s) * T_p
    new      sum of new_ps over a component's pools on a kind of device >= their units - units that are held
    loads    sum of new_ps over a component's pools on a kind of device <= devices that load it in load_s
    devices  sum of n_p over the pools of a kind <= the devices of that kind

A device that loads a component carries nothing for `load_s` of the `horizon_s` that the demand is expected to hold: a
switch is made if it pays within the horizon. Devices with the component in another tier load it in another time: each
time is a step s, and the quickest devices load first. Each device-second of a request costs `second_price` of quality.
Demand that cannot be carried in time is not served, the worst route first. All latencies are constants of the problem,
so that only the units are integer: hundreds of devices are quick to plan.

The plans of single papers are the same problem with fewer routes (`single_plans`).
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import ge

from pentimento.domain.models import Handover
from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.entry import IMAGE

HEAVY_ONLY, LIGHT_ONLY, CASCADE, MIXTURE = "heavy only", "light only", "cascade", "mixture"


@dataclass(frozen=True)
class Component:
    """Describe a model that a device can hold. `costs`: of batches, by kind of device. `load_s`: seconds
    until it serves, in the mean of the slowest kind. `loads_s`: those of each device that does not hold it, by kind;
    `load_s` for all devices of other kinds. `wait_s`: seconds that its requests wait for their batch."""

    name: str
    costs: Mapping[str, tuple[BatchCost, ...]]
    load_s: float = 0.0
    wait_s: float = 0.0
    loads_s: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def load_steps(self, kind: str) -> list[tuple[float, float]]:
        """Return the seconds until it serves on devices of a kind, ascending, and the number of devices with each."""
        loads_s = self.loads_s.get(kind)
        return [(self.load_s, math.inf)] if loads_s is None else sorted(Counter(loads_s).items())

    def lost_units(self, kind: str, new_count: int, horizon_s: float) -> float:
        """Return the units that carry nothing within the horizon while `new_count` devices load it, the quickest
        ones."""
        lost, left = 0.0, float(new_count)
        for load_s, count in self.load_steps(kind):
            lost += min(left, count) * min(load_s / horizon_s, 1.0)
            left -= min(left, count)
        return lost


@dataclass(frozen=True)
class Use:
    """Describe the part of a component that a route needs, in whole runs. `work`: of a mean request. `path`: of a
    request that needs all of it, for its latency."""

    component: str
    work: float
    path: float = 1.0


@dataclass(frozen=True)
class PlannedRoute:
    """Describe a way to generate the image of a request with that start.

    `quality`: the mean of its images, 0..1. `threshold`: the least confidence with which a cascade keeps the light
    image; `handover`: the registration of the pair. `left_out`: the share (0..1) of the heavy model's work that is
    skipped on a route that skips all the steps allowed.
    """

    name: str
    start: str
    uses: tuple[Use, ...]
    quality: float
    threshold: float = 0.0
    handover: Handover | None = None
    left_out: float = 0.0

    @property
    def models(self) -> tuple[str, ...]:
        """Return its components, in order."""
        return tuple(use.component for use in self.uses)

    @property
    def path(self) -> tuple[Use, ...]:
        """Return the uses without the work: routes with equal paths are in time together."""
        return tuple(Use(use.component, 0.0, use.path) for use in self.uses)


@dataclass(frozen=True)
class AllocationProblem:
    """Hold the numbers of the problem.

    `demand`: requests a second by start. `devices`: their number by kind. `held`: units by (kind, component).
    `rooms`: starts of requests outside the present demand (a backlog, or requests that may arrive before the next
    plan), and the worth of carrying one a second, in quality. `second_price`: the quality that a request must gain for
    each second of a device, 0..1.
    """

    demand: Mapping[str, float]
    devices: Mapping[str, int]
    components: Sequence[Component]
    routes: Sequence[PlannedRoute]
    slo_s: float
    held: Mapping[tuple[str, str], int] = field(default_factory=dict)
    horizon_s: float = 60.0
    served_weight: float = 10.0
    rooms: Mapping[str, float] = field(default_factory=dict)
    second_price: float = 0.0

    @property
    def wanted(self) -> float:
        """Return the requests a second, without rooms."""
        return sum(rate for start, rate in self.demand.items() if start not in self.rooms)

    @cached_property
    def _route_by_name(self) -> Mapping[str, PlannedRoute]:
        return {route.name: route for route in self.routes}

    def route(self, name: str) -> PlannedRoute:
        """Return the route of that name."""
        return self._route_by_name[name]

    def worth(self, route: PlannedRoute) -> float:
        """Return the gain of the objective by a request a second on that route."""
        if route.start in self.rooms:
            return self.rooms[route.start]
        return self.served_weight + route.quality - self.second_price * self.device_seconds(route)

    def device_seconds(self, route: PlannedRoute) -> float:
        """Return the device-seconds of a mean request on that route, in the batches with the highest throughput."""
        return sum(use.work * self._seconds_of_run.get(use.component, 0.0) for use in route.uses)

    @cached_property
    def _seconds_of_run(self) -> Mapping[str, float]:
        return {
            component.name: 1.0 / max(cost.throughput for costs in found for cost in costs)
            for component in self.components
            if (found := [costs for costs in component.costs.values() if costs])
        }

    @property
    def bound(self) -> float:
        """Return an upper bound of every plan's objective: all requests are served, by the best route of each start."""
        best: dict[str, float] = {}
        for route in self.routes:
            best[route.start] = max(self.worth(route), best.get(route.start, 0.0))
        return sum(rate * best[start] for start, rate in self.demand.items() if start in best)


@dataclass(frozen=True, order=True)
class PlannedPool:
    """Identify a pool: a component in batches of one size on devices of one kind."""

    component: str
    kind: str
    batch_size: int


@dataclass(frozen=True)
class Course:
    """Identify a route through certain pools, listed in the order of its path."""

    route: str
    pools: tuple[PlannedPool, ...]


@dataclass(frozen=True)
class AllocationSolution:
    """Hold the units of each pool and the requests a second of each course, without zeros. `is_optimal` is False if a
    limit ended the search."""

    units: Mapping[PlannedPool, int]
    rates: Mapping[Course, float]
    served_share: float
    objective: float
    is_optimal: bool = True


Path = tuple[Use, ...]
Pools = tuple[PlannedPool, ...]
Speeds = tuple[float, ...]


def pools_in_time(problem: AllocationProblem, paths: Iterable[Path]) -> dict[Path, list[Pools]]:
    """Return the choices of pools that keep the SLO, for each path.

    Choices with a pool that no path needs are removed: every path has another choice on the same kinds of device that
    is no slower in any of its pools.
    """
    batches = {component.name: list(batches_of(problem, component)) for component in problem.components}
    waits_s = {component.name: component.wait_s for component in problem.components}
    found = {}
    for path in paths:
        left_s = (problem.slo_s - sum(waits_s[use.component] for use in path)) * (1 + 1e-9)
        found[path] = list(_choices_in_time([(use.path, batches[use.component]) for use in path], left_s))
    needed = {pool for choices in found.values() for pools in _fastest(choices) for pool in pools}
    return {path: [pools for pools, _ in choices if needed.issuperset(pools)] for path, choices in found.items()}


def least_s(problem: AllocationProblem, start: str) -> float:
    """Return the seconds of the quickest route of that start, with the waits before its batches; 0 without a route."""
    quickest_s = {
        component.name: min(cost.felt_s for _, cost in batches)
        for component in problem.components
        if (batches := list(batches_of(problem, component)))
    }
    waits_s = {component.name: component.wait_s for component in problem.components}
    ways = [route.uses for route in problem.routes if route.start == start]
    taken = [
        sum(waits_s[use.component] + use.path * quickest_s[use.component] for use in way)
        for way in ways
        if all(use.component in quickest_s for use in way)
    ]
    return min(taken, default=0.0)


def batches_of(problem: AllocationProblem, component: Component) -> Iterator[tuple[PlannedPool, BatchCost]]:
    """Yield the component's pools and the costs of their batches."""
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
    """Yield the choices that no other choice on the same kinds of device beats: faster in one pool, no slower in
    any."""
    by_kinds: dict[tuple[str, ...], list[tuple[Pools, Speeds]]] = {}
    for pools, speeds in choices:
        by_kinds.setdefault(tuple(pool.kind for pool in pools), []).append((pools, speeds))
    for alike in by_kinds.values():
        # After sorting, a choice precedes all choices that it beats.
        alike.sort(key=lambda choice: choice[1], reverse=True)
        kept: list[Speeds] = []
        for pools, speeds in alike:
            if not any(other != speeds and all(map(ge, other, speeds)) for other in kept):
                kept.append(speeds)
                yield pools


def single_plans(problem: AllocationProblem, heavy: str, light: str) -> Mapping[str, AllocationProblem]:
    """Return the problems of single papers: every start by one model, DiffServe's cascade, MoDM's mixture. Problems
    without a route for some start are skipped."""
    allowed: Mapping[str, Callable[[PlannedRoute], bool]] = {
        HEAVY_ONLY: lambda route: route.models == (heavy,),
        LIGHT_ONLY: lambda route: route.models == (light,),
        CASCADE: lambda route: route.models in ((light,), (light, heavy)),
        MIXTURE: lambda route: len(route.models) == 1 and (route.start == IMAGE or route.models == (heavy,)),
    }
    starts = {route.start for route in problem.routes}
    plans = {}
    for name, is_allowed in allowed.items():
        # Every plan carries rooms and backlogs.
        kept = [route for route in problem.routes if route.start in problem.rooms or is_allowed(route)]
        if {route.start for route in kept} == starts:
            plans[name] = replace(problem, routes=kept)
    return plans
