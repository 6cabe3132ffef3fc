"""One allocation problem for every way in which a picture can be painted, as a mixed integer linear program.

A *route* is one of those ways: the heavy model from noise, a cascade at one threshold, a latent resumed, an image
refined by a small model, each with or without adapters. A *component* is what a device holds: a model, a ControlNet, or
a model whose guidance is halved between a pair of devices. A *pool* is a component in batches of one size on devices of
one kind; a *course* is a route through certain pools that keeps the SLO.

    max  sum_i rate_i * (served_weight + quality of its route)        i: courses; p: pools; n_p: units of a pool
    rate     sum of rate_i over the courses of a start <= the demand of that start
    work     sum_i rate_i * work_ip + aside_p <= (n_p - new_p * load_s / horizon_s) * T_p
    aside    sum of aside_p over the pools of a component = what routes need of it beside their course
    new      sum of new_p over a component's pools on a kind of device >= their units - those that are held
    devices  sum of n_p * devices_p over the pools of a kind <= the devices of that kind

A device that loads a component carries nothing for `load_s` of the `horizon_s` that the demand is expected to hold: a
switch is made where it pays within the horizon. Demand beyond what can be carried in time is not served, the worst
route first. All latencies are known beforehand, so that nothing but the units is integer: that is what makes hundreds
of devices quick to plan.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pentimento.policies.serving.costs import BatchCost
from pentimento.policies.serving.linear_program import LinearProgram

# Of equal plans the one with fewer loads.
_LOAD_WEIGHT = 1e-6


@dataclass(frozen=True)
class Component:
    """What a device holds. `costs`: what batches cost, by the kinds of device that it fits on. `load_s`: seconds until
    it serves. `wait_s`: how long its requests wait for their batch. `devices`: how many of them hold it together."""

    name: str
    costs: Mapping[str, tuple[BatchCost, ...]]
    load_s: float = 0.0
    wait_s: float = 0.0
    devices: int = 1


@dataclass(frozen=True)
class Use:
    """How much of a component a route needs, in whole runs. `work`: of a mean request. `path`: of a request that needs
    all of it, whose latency counts; 0 for what runs beside it, such as a ControlNet."""

    component: str
    work: float
    path: float = 1.0


@dataclass(frozen=True)
class PaintingRoute:
    """A way to paint a request with that start. `quality` is that of its pictures on average, 0..1."""

    name: str
    start: str
    uses: tuple[Use, ...]
    quality: float

    @property
    def on_path(self) -> tuple[Use, ...]:
        """Return what its latency is made of, in its order."""
        return tuple(use for use in self.uses if use.path > 0.0)

    @property
    def path(self) -> tuple[Use, ...]:
        """Return the same without the work: routes with one path are in time together."""
        return tuple(Use(use.component, 0.0, use.path) for use in self.on_path)


@dataclass(frozen=True)
class JointProblem:
    """The numbers of the problem. `demand`: requests a second by start. `devices`: how many, by kind. `held`: units by
    (kind, component). `may_load`: False where devices keep what they hold, or are left idle."""

    demand: Mapping[str, float]
    devices: Mapping[str, int]
    components: Sequence[Component]
    routes: Sequence[PaintingRoute]
    slo_s: float
    held: Mapping[tuple[str, str], int] = field(default_factory=dict)
    horizon_s: float = 60.0
    served_weight: float = 10.0
    may_load: bool = True

    @property
    def bound(self) -> float:
        """Return what no plan's objective exceeds: all are served, each by the best way for its start."""
        best: dict[str, float] = {}
        for route in self.routes:
            best[route.start] = max(route.quality, best.get(route.start, 0.0))
        return sum(rate * (self.served_weight + best[start]) for start, rate in self.demand.items() if start in best)


@dataclass(frozen=True, order=True)
class PlannedPool:
    """A component in batches of one size on devices of one kind."""

    component: str
    kind: str
    batch_size: int


@dataclass(frozen=True)
class Course:
    """A route through certain pools, those of its path in their order."""

    route: str
    pools: tuple[PlannedPool, ...]


@dataclass(frozen=True)
class JointSolution:
    """The units of each pool and the requests a second of each course, without those that have none. `is_optimal` is
    False where a time limit ended the search."""

    units: Mapping[PlannedPool, int]
    rates: Mapping[Course, float]
    served_share: float
    objective: float
    is_optimal: bool = True


def solve_jointly(
    problem: JointProblem, limit_s: float = math.inf, gap: float = 0.0, most_nodes: int | None = None
) -> JointSolution | None:
    """Return a plan within the share `gap` of the best one, or the best that was found within `limit_s` or `most_nodes`
    of the search; None where none was."""
    return _JointProgram(problem).solve(limit_s, gap, most_nodes)


def pools_in_time(
    problem: JointProblem, paths: Iterable[tuple[Use, ...]]
) -> dict[tuple[Use, ...], list[tuple[PlannedPool, ...]]]:
    """Return the choices of pools for each path that keep the SLO. Left out are choices with a pool that no path needs:
    one for which every path has a choice on the same kinds of device that is no slower in any of its pools."""
    found = {path: dict(_choices_in_time(problem, path)) for path in paths}
    needed = {
        pool
        for choices in found.values()
        for pools, speeds in choices.items()
        if not any(_outdoes(pools, speeds, *other) for other in choices.items())
        for pool in pools
    }
    return {path: [pools for pools in choices if needed.issuperset(pools)] for path, choices in found.items()}


def _choices_in_time(
    problem: JointProblem, path: tuple[Use, ...]
) -> Iterator[tuple[tuple[PlannedPool, ...], tuple[float, ...]]]:
    components = {component.name: component for component in problem.components}
    left_s = (problem.slo_s - sum(components[use.component].wait_s for use in path)) * (1 + 1e-9)
    for steps in itertools.product(*(_batches(problem, components[use.component]) for use in path)):
        if sum(use.path * cost.latency_s for use, (_, cost) in zip(path, steps, strict=True)) <= left_s:
            yield tuple(pool for pool, _ in steps), tuple(cost.throughput for _, cost in steps)


def _outdoes(
    pools: tuple[PlannedPool, ...],
    speeds: tuple[float, ...],
    other_pools: tuple[PlannedPool, ...],
    other_speeds: tuple[float, ...],
) -> bool:
    same_kinds = all(pool.kind == other.kind for pool, other in zip(pools, other_pools, strict=True))
    return same_kinds and other_speeds != speeds and _is_no_slower(other_speeds, speeds)


def _is_no_slower(speeds: tuple[float, ...], others: tuple[float, ...]) -> bool:
    return all(speed >= other for speed, other in zip(speeds, others, strict=True))


def _batches(problem: JointProblem, component: Component) -> Iterator[tuple[PlannedPool, BatchCost]]:
    for kind in problem.devices:
        for cost in component.costs.get(kind, ()):
            yield PlannedPool(component.name, kind, cost.batch_size), cost


class _JointProgram:
    """The linear program of a problem, and what its variables mean."""

    def __init__(self, problem: JointProblem) -> None:
        self._problem = problem
        self._program = LinearProgram()
        self._components = {component.name: component for component in problem.components}
        self._routes = {route.name: route for route in problem.routes}
        self._pools = {p: cost for component in problem.components for p, cost in _batches(problem, component)}
        self._rates = self._add_rates()
        self._units = {pool: self._program.variable(high=self._most(pool), integer=True) for pool in self._pools}
        most_new = math.inf if problem.may_load else 0.0
        self._new = {pool: self._program.variable(-_LOAD_WEIGHT, most_new) for pool in self._pools}
        self._carry_work(self._add_aside())
        for component in problem.components:
            for kind in problem.devices:
                self._count_loads(kind, component)
        for kind, count in problem.devices.items():
            units = [(unit, self._components[p.component].devices) for p, unit in self._units.items() if p.kind == kind]
            self._program.require(units, at_most=count)

    def solve(self, limit_s: float, gap: float, most_nodes: int | None) -> JointSolution | None:
        solved = self._program.solve(limit_s, gap, most_nodes)
        if solved is None:
            return None
        values, routes = solved.values, self._routes
        rates = {course: values[rate] for course, rate in self._rates.items() if values[rate] > 1e-9}
        wanted = sum(self._problem.demand.values())
        return JointSolution(
            {pool: round(values[unit]) for pool, unit in self._units.items() if round(values[unit])},
            rates,
            min(1.0, sum(rates.values()) / wanted) if wanted > 0 else 1.0,
            sum(rate * (self._problem.served_weight + routes[course.route].quality) for course, rate in rates.items()),
            solved.is_optimal,
        )

    def _most(self, pool: PlannedPool) -> int:
        return self._problem.devices[pool.kind] // self._components[pool.component].devices

    def _add_rates(self) -> dict[Course, int]:
        rates: dict[Course, int] = {}
        limits: dict[str, list[int]] = {start: [] for start in self._problem.demand}
        choices = pools_in_time(self._problem, dict.fromkeys(route.path for route in self._problem.routes))
        for route in self._problem.routes:
            for pools in choices[route.path] if route.start in limits else ():
                rate = self._program.variable(self._problem.served_weight + route.quality)
                rates[Course(route.name, pools)] = rate
                limits[route.start].append(rate)
        for start, of_start in limits.items():
            self._program.require(((rate, 1.0) for rate in of_start), at_most=self._problem.demand[start])
        return rates

    def _add_aside(self) -> dict[PlannedPool, int]:
        """What runs beside requests may run in any pool of its component."""
        works: dict[str, dict[str, float]] = {}
        for route in self._problem.routes:
            for use in route.uses:
                if use.path == 0.0 and use.work > 0.0:
                    works.setdefault(use.component, {})[route.name] = use.work
        aside: dict[PlannedPool, int] = {}
        for component, work_of in works.items():
            own = {pool: self._program.variable() for pool in self._pools if pool.component == component}
            needed = [(rate, -work_of[course.route]) for course, rate in self._rates.items() if course.route in work_of]
            self._program.require([*((amount, 1.0) for amount in own.values()), *needed], at_least=0.0)
            aside |= own
        return aside

    def _carry_work(self, aside: Mapping[PlannedPool, int]) -> None:
        terms: dict[PlannedPool, list[tuple[int, float]]] = {pool: [] for pool in self._pools}
        for course, rate in self._rates.items():
            route = self._routes[course.route]
            for use, pool in zip(route.on_path, course.pools, strict=True):
                terms[pool].append((rate, -use.work))
        for pool, works in terms.items():
            throughput = self._pools[pool].throughput
            lost = min(self._components[pool.component].load_s / self._problem.horizon_s, 1.0)
            works += [(self._units[pool], throughput), (self._new[pool], -lost * throughput)]
            if pool in aside:
                works.append((aside[pool], -1.0))
            self._program.require(works, at_least=0.0)

    def _count_loads(self, kind: str, component: Component) -> None:
        own = [pool for pool in self._pools if (pool.kind, pool.component) == (kind, component.name)]
        held = self._problem.held.get((kind, component.name), 0)
        terms = [*((self._new[pool], 1.0) for pool in own), *((self._units[pool], -1.0) for pool in own)]
        self._program.require(terms, at_least=-held)
        for pool in own:
            self._program.require([(self._new[pool], 1.0), (self._units[pool], -1.0)], at_most=0.0)
