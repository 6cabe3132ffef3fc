"""Write the allocation problem as a linear program, built once for the searches with loads and without."""

import math
from dataclasses import dataclass

from pentimento.policies.plan.joint.problem import (
    AllocationProblem,
    AllocationSolution,
    Component,
    Course,
    PlannedPool,
    batches_of,
    pools_in_time,
)
from pentimento.policies.plan.joint.solver import BranchAndBound, Budget, LinearProgram

# Weight of a load, so that the plan with fewer loads wins among equal ones.
_LOAD_WEIGHT = 1e-6


class AllocationProgram:
    """Build the linear program of a problem, and search for its best values."""

    def __init__(self, problem: AllocationProblem) -> None:
        self._problem = problem
        self._program = LinearProgram()
        self._components = {component.name: component for component in problem.components}
        self._pools = {p: cost for component in problem.components for p, cost in batches_of(problem, component)}
        # Numbers of the variables.
        self._rates = self._add_rates()
        self._units = {
            pool: self._program.variable(high=problem.devices[pool.kind], integer=True) for pool in self._pools
        }
        # New units of each pool, by the seconds of their load.
        self._new = {
            pool: [
                self._new_units(load_s, count)
                for load_s, count in self._components[pool.component].load_steps(pool.kind)
            ]
            for pool in self._pools
        }
        self._carry_work()
        for component in problem.components:
            for kind in problem.devices:
                self._count_loads(kind, component)
        for kind, count in problem.devices.items():
            self._program.require([(unit, 1.0) for p, unit in self._units.items() if p.kind == kind], at_most=count)
        self._searched: BranchAndBound | None = None
        # Upper bound of plans without loads, set by a finished search for them.
        self._best_held = math.inf

    def search(
        self, gap: float, most_relaxations: int, *, may_load: bool, above: float = -math.inf
    ) -> AllocationSolution | None:
        """Return a solution within the share `gap` of the best and above the objective `above`, or the best one after
        `most_relaxations`; None if none is found."""
        if self._searched is None:
            self._searched = BranchAndBound(self._program.relaxation(), list(self._units.values()))
        new = [one for steps in self._new.values() for one in steps]
        self._searched.bound([one.variable for one in new], [one.most if may_load else 0.0 for one in new])
        if may_load:
            known = self._held() if above >= self._best_held else ()
            found = self._searched.search(gap, most_relaxations, self._devices(), above, known)
        else:
            found = self._searched.search(gap, most_relaxations, self._held(), above)
            if found.is_optimal:
                self._best_held = max(found.objective, above)
        return self._solution(found.values, found.is_optimal) if found.values else None

    def solved_by_highs(self, limit_s: float, gap: float) -> AllocationSolution | None:
        """Return a solution by HiGHS's own search, which has `limit_s` seconds; None if it finds none."""
        solved = self._program.solve(limit_s, gap)
        return self._solution(solved.values, solved.is_optimal) if solved is not None else None

    def _solution(self, values: tuple[float, ...], is_optimal: bool) -> AllocationSolution:
        route_of, worth = self._problem.route, self._problem.worth
        rates = {course: values[rate] for course, rate in self._rates.items() if values[rate] > 1e-9}
        wanted = self._problem.wanted
        served = sum(rate for course, rate in rates.items() if route_of(course.route).start not in self._problem.rooms)
        return AllocationSolution(
            {pool: round(values[unit]) for pool, unit in self._units.items() if round(values[unit])},
            rates,
            min(1.0, served / wanted) if wanted > 0 else 1.0,
            sum(rate * worth(route_of(course.route)) for course, rate in rates.items()),
            is_optimal,
        )

    def _devices(self) -> list[Budget]:
        """Return the devices of each kind as a budget, which the kind's pools share."""
        return [
            Budget({place: 1 for place, pool in enumerate(self._pools) if pool.kind == kind}, count)
            for kind, count in self._problem.devices.items()
        ]

    def _held(self) -> list[Budget]:
        """Return the held units by kind of device and component, which need no load, as budgets that pools share."""
        own: dict[tuple[str, str], dict[int, int]] = {}
        for place, pool in enumerate(self._pools):
            own.setdefault((pool.kind, pool.component), {})[place] = 1
        return [Budget(costs, self._problem.held.get(key, 0)) for key, costs in own.items()]

    def _add_rates(self) -> dict[Course, int]:
        rates: dict[Course, int] = {}
        limits: dict[str, list[int]] = {start: [] for start in self._problem.demand}
        paths = {route.name: route.path for route in self._problem.routes}
        choices = pools_in_time(self._problem, dict.fromkeys(paths.values()))
        for route in self._problem.routes:
            worth = self._problem.worth(route)
            for pools in choices[paths[route.name]] if route.start in limits else ():
                rate = self._program.variable(worth)
                rates[Course(route.name, pools)] = rate
                limits[route.start].append(rate)
        for start, of_start in limits.items():
            self._program.require(((rate, 1.0) for rate in of_start), at_most=self._problem.demand[start])
        return rates

    def _carry_work(self) -> None:
        terms: dict[PlannedPool, list[tuple[int, float]]] = {pool: [] for pool in self._pools}
        works = {route.name: [-use.work for use in route.uses] for route in self._problem.routes}
        for course, rate in self._rates.items():
            for work, pool in zip(works[course.route], course.pools, strict=True):
                terms[pool].append((rate, work))
        for pool, own in terms.items():
            throughput = self._pools[pool].throughput
            own.append((self._units[pool], throughput))
            own += [(new.variable, -new.lost * throughput) for new in self._new[pool]]
            self._program.require(own, at_least=0.0)

    def _count_loads(self, kind: str, component: Component) -> None:
        units, new = self._units, self._new
        own = [pool for pool in self._pools if (pool.kind, pool.component) == (kind, component.name)]
        held = self._problem.held.get((kind, component.name), 0)
        all_new = [(one.variable, 1.0) for pool in own for one in new[pool]]
        self._program.require([*all_new, *((units[pool], -1.0) for pool in own)], at_least=-held)
        for pool in own:
            self._program.require([*((one.variable, 1.0) for one in new[pool]), (units[pool], -1.0)], at_most=0.0)
        for of_step in zip(*(new[pool] for pool in own), strict=True) if len(own) > 1 else ():
            if of_step[0].most < math.inf:
                self._program.require([(one.variable, 1.0) for one in of_step], at_most=of_step[0].most)

    def _new_units(self, load_s: float, most: float) -> "_NewUnits":
        variable = self._program.variable(-_LOAD_WEIGHT, most)
        return _NewUnits(variable, most, min(load_s / self._problem.horizon_s, 1.0))


@dataclass(frozen=True)
class _NewUnits:
    """Hold the variable of a pool's units that load in equal seconds: at most `most`. Each carries nothing for the
    share `lost` of the horizon."""

    variable: int
    most: float
    lost: float
