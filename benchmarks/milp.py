"""Compare plans with brute force, and time solving, for DiffServe's problem and the joint one.

Plain: random cascades on up to 8 devices; the MILP and the enumeration against every choice of devices, batch sizes and
threshold. Joint: random fleets of 2 to 4 devices with models, a cascade, hits and devices with loaded
components; every choice of units per pool, each with its best rates (scipy's `linprog`). The oracles share no code with
the solvers except a problem's values.

Times are processor seconds of one thread, from the problem to the plan; for the joint policy from its inputs to its
decision, at every plan of simulated traces, with and without Python's garbage collection other than full collections,
which wait for a quiet moment in a service; and, as in earlier results, with every collection and every thread of the
process. DiffServe's paper states 10 ms with Gurobi.
"""

import itertools
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import linprog

from benchmarks.timed_looks import LookReading, looks_ms
from lab.planners.cascade_milp import solve_by_milp
from lab.runs.intervals import percentile
from lab.runs.measure import at_most, counted, informative, measured, parse_options, publish
from pentimento.policies.plan.cascade_problem import CascadeProblem, grid, solve_cascade
from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.joint.problem import AllocationProblem, AllocationSolution, Component, PlannedRoute, Use
from pentimento.policies.plan.joint.program import AllocationProgram
from pentimento.policies.plan.settings import DeferralCurve

# Floating-point solvers keep constraints within a millionth.
TOLERANCE = 1e-5
BATCHES = (1, 2, 4, 8, 16, 32)
# SD-Turbo and SD 1.5 on an A100 by batch size, seconds (DiffServe's profiles)
TURBO_S = (0.1, 0.15, 0.22, 0.41, 0.77, 1.56)
SD15_S = (1.78, 2.16, 3.68, 6.79, 12.88, 25.35)
# plans of hundreds of devices may be this far below the best
LARGE_GAP = 1e-3
BEST_LIMIT_S = 2.0
MANY = 10_000
SEED = 11
p99 = percentile(0.99)


def main() -> int:
    options = parse_options("milp", __doc__)
    count = 40 if options.quick else 1000
    times = (10, 5) if options.quick else (500, 60)
    rng = random.Random(SEED)
    plain = [is_optimal_plain(random_cascade(rng)) for _ in range(count)]
    joint = [joint_shortfall(random_fleet(rng)) for _ in range(count)]
    sixteen = [seconds_of(solve_by_milp, paper_cascade(rng)) for _ in range(times[0])]
    enumerated = [seconds_of(solve_cascade, paper_cascade(rng)) for _ in range(times[0])]
    looks, uncollected, whole = (looks_ms(options.quick, reading) for reading in LookReading)
    large = [timed_large(rng) for _ in range(times[1])]
    large_ms, gaps = [took for took, _ in large], [gap for _, gap in large]
    figures = [
        counted("plain: not optimal", plain.count(False), count, at_most(0, "instances")),
        counted("joint: not optimal", sum(gap > TOLERANCE for gap in joint), count, at_most(0, "instances")),
        measured("plain, 16 workers: p99", sixteen, p99, at_most(10.0, "ms")),
        measured("plain by enumeration, 16 workers: p99", enumerated, p99, informative("ms")),
        measured("joint policy, 16 workers, a look: p99", looks, p99, at_most(10.0, "ms")),
        measured("the same: median", looks, median, informative("ms")),
        measured("the same without the collector of garbage: p99", uncollected, p99, informative("ms")),
        measured("the same, the whole process, every collection: p99", whole, p99, at_most(10.0, "ms")),
        measured("joint, 300 devices, 8 variants, 6 batch sizes: p99", large_ms, p99, at_most(200.0, "ms")),
        measured("the same: how far from the best", gaps, max, at_most(LARGE_GAP)),
    ]
    return publish(options, figures, notes={"seed": SEED})


def seconds_of(solver: Callable[[CascadeProblem], object], problem: CascadeProblem) -> float:
    began = time.thread_time()
    solver(problem)
    return (time.thread_time() - began) * 1e3


def random_cascade(rng: random.Random) -> CascadeProblem:
    def costs(slowest: float) -> tuple[BatchCost, ...]:
        seconds = sorted(rng.uniform(0.05, slowest) for _ in range(rng.randint(1, 3)))
        return tuple(BatchCost(2**power, second) for power, second in enumerate(seconds))

    queue_s, power, points = rng.choice([0.0, rng.uniform(0.0, 2.0)]), rng.uniform(0.3, 3.0), grid(21)
    demand, device_count, slo_s = rng.uniform(0.1, 30.0), rng.randint(1, 8), rng.uniform(0.5, 8.0)
    stages = tuple(tuple(replace(cost, wait_s=queue_s) for cost in costs(slowest)) for slowest in (2.0, 4.0))
    curve = DeferralCurve(points, tuple(t**power for t in points))
    return CascadeProblem(demand, device_count, slo_s, stages, (curve,), rng.choice([0.0, 0.01, 0.3]), points)


def paper_cascade(rng: random.Random) -> CascadeProblem:
    power, points = rng.uniform(0.5, 2.0), grid(201)
    waits_s = rng.uniform(0.0, 0.5), rng.uniform(0.0, 2.0)
    stages = tuple(
        tuple(BatchCost(size, seconds, wait_s) for size, seconds in zip(BATCHES, table, strict=True))
        for table, wait_s in zip((TURBO_S, SD15_S), waits_s, strict=True)
    )
    curve = DeferralCurve(points, tuple(t**power for t in points))
    return CascadeProblem(rng.uniform(1.0, 60.0), 16, 5.0, stages, (curve,), 0.01, points)


def is_optimal_plain(problem: CascadeProblem) -> bool:
    """Return whether both solvers give the largest threshold of all choices, or that of the problem with a millionth of
    slack."""
    slack = replace(problem, demand=problem.demand * (1 - TOLERANCE), slo_s=problem.slo_s + TOLERANCE)
    best = {largest_threshold(problem), largest_threshold(slack)}
    found = (solve_by_milp(problem), solve_cascade(problem))
    return all((solution.thresholds[0] if solution.feasible else None) in best for solution in found)


def largest_threshold(problem: CascadeProblem) -> float | None:
    """Return the largest t over every x1, x2, b1, b2, or None if none keeps the constraints."""
    best = None
    lights, heavies = problem.stages
    for light, heavy, x1 in itertools.product(lights, heavies, range(1, problem.device_count + 1)):
        x2 = problem.device_count - x1
        late = problem.latency_s((light, heavy)) > problem.slo_s
        if late or x1 * light.throughput < problem.demand * (1 - 1e-9):
            continue
        for threshold in problem.thresholds:
            carried = x2 * heavy.throughput * (1 + 1e-9) >= problem.demand * problem.curves[0].share(threshold)
            if carried and (best is None or threshold > best):
                best = threshold
    return best


def random_fleet(rng: random.Random) -> AllocationProblem:
    """Return two models with a cascade, images and latents, on one or two kinds of device. One kind may be too small
    for the heavy model. In half of the problems device-seconds have a price."""
    kinds = ("big", "little")[: rng.randint(1, 2)]
    devices = {kind: rng.randint(1, 2) for kind in kinds}

    def component(name: str, fastest_s: float, *, fits: Sequence[str]) -> Component:
        costs = {}
        for kind in fits:
            first = fastest_s * rng.uniform(0.7, 2.0)
            costs[kind] = (BatchCost(1, first), BatchCost(4, first * rng.uniform(1.5, 4.5)))
        return Component(name, costs, rng.uniform(0.0, 40.0), rng.uniform(0.0, 0.3))

    light, heavy = (
        component("light", 0.2, fits=kinds),
        component("heavy", 1.0, fits=kinds[: rng.randint(1, len(kinds))]),
    )
    low, high = rng.uniform(0.3, 0.8), rng.uniform(0.8, 1.0)
    routes = [
        PlannedRoute("light", "noise", (Use("light", 1.0),), low),
        PlannedRoute("heavy", "noise", (Use("heavy", 1.0),), high),
        PlannedRoute("resumed", "latent", (Use("heavy", 0.6, 0.6),), high * 0.97),
        PlannedRoute("refined", "image", (Use("light", 0.5, 0.5),), high * 0.95),
    ]
    for threshold in (0.3, 0.7):
        uses = (Use("light", 1.0), Use("heavy", threshold))
        routes.append(
            PlannedRoute(f"cascade {threshold}", "noise", uses, low + (high - low) * (2 - threshold) * threshold)
        )
    total = rng.uniform(0.2, 8.0)
    shares = {"noise": 0.6, "latent": 0.2, "image": 0.2}
    held = {(kind, rng.choice(("light", "heavy"))): rng.randint(0, devices[kind]) for kind in kinds}
    demand = {start: total * share for start, share in shares.items()}
    slo_s, price = rng.uniform(1.0, 6.0), rng.choice((0.0, rng.uniform(0.0, 0.5)))
    return AllocationProblem(demand, devices, (light, heavy), routes, slo_s, held, second_price=price)


def joint_shortfall(problem: AllocationProblem) -> float:
    """Return the plan's shortfall as a share of the best choice's worth, the worse of one search and of
    two."""
    found = min(
        objective_of(AllocationProgram(problem).search(0.0, MANY, may_load=True)), objective_in_two_steps(problem)
    )
    best = max(worth(problem, units) for units in every_choice(problem))
    return max(0.0, (best - found) / max(best, 1e-9))


def objective_in_two_steps(problem: AllocationProblem) -> float:
    """Solve in the policy's two steps: first without loads, then above that."""
    program = AllocationProgram(problem)
    stays = objective_of(program.search(0.0, MANY, may_load=False))
    return max(stays, objective_of(program.search(0.0, MANY, may_load=True, above=stays)))


def objective_of(solution: AllocationSolution | None) -> float:
    return solution.objective if solution is not None else 0.0


@dataclass(frozen=True)
class _OraclePool:
    component: str
    kind: str
    latency_s: float
    throughput: float


def _oracle_pools(problem: AllocationProblem) -> list[_OraclePool]:
    return [
        _OraclePool(component.name, kind, cost.latency_s, cost.batch_size / cost.latency_s)
        for component in problem.components
        for kind in problem.devices
        for cost in component.costs.get(kind, ())
    ]


def every_choice(problem: AllocationProblem) -> Iterator[dict[_OraclePool, int]]:
    """Yield every way to give each device of every kind to a pool. Using all devices is never worth less."""
    by_kind = []
    for kind, count in problem.devices.items():
        pools = [pool for pool in _oracle_pools(problem) if pool.kind == kind]
        by_kind.append(list(itertools.combinations_with_replacement(pools, count)))
    for choice in itertools.product(*by_kind):
        given = [pool for devices in choice for pool in devices]
        yield {pool: given.count(pool) for pool in given}


def worth(problem: AllocationProblem, units: dict[_OraclePool, int]) -> float:
    """Return the best objective with these units, over all rates."""
    return _Rates(problem, units).best()


class _Rates:
    """Set up the linear program of the rates. Its columns: rates of (route, pools in a row), and units by pool lost
    to loading."""

    def __init__(self, problem: AllocationProblem, units: dict[_OraclePool, int]) -> None:
        self._problem, self._units, self._pools = problem, units, list(units)
        self._components = {component.name: component for component in problem.components}
        self._courses = [
            (route, route.uses, chosen)
            for route in problem.routes
            for chosen in itertools.product(*([p for p in units if p.component == use.component] for use in route.uses))
            if self._seconds(route.uses, chosen) <= problem.slo_s * (1 + 1e-9)
        ]
        self._width = len(self._courses) + len(units)

    def best(self) -> float:
        if not self._width:
            return 0.0
        rows = [*self._demand_rows(), *self._work_rows(), *self._load_rows()]
        weights = np.zeros(self._width)
        weights[: len(self._courses)] = [-self._worth(route) for route, _, _ in self._courses]
        bounds = [*([(0, None)] * len(self._courses)), *((0, self._units[pool]) for pool in self._pools)]
        matrix, limits = np.array([row for row, _ in rows]), [limit for _, limit in rows]
        return -float(linprog(weights, matrix, limits, bounds=bounds, method="highs-ds").fun)

    def _worth(self, route: PlannedRoute) -> float:
        fewest_s = {
            name: min(c.latency_s / c.batch_size for costs in one.costs.values() for c in costs)
            for name, one in self._components.items()
            if one.costs
        }
        seconds = sum(use.work * fewest_s.get(use.component, 0.0) for use in route.uses)
        return self._problem.served_weight + route.quality - self._problem.second_price * seconds

    def _seconds(self, path: Sequence[Use], chosen: Sequence[_OraclePool]) -> float:
        waits_s = sum(self._components[use.component].wait_s for use in path)
        return waits_s + sum(use.path * pool.latency_s for use, pool in zip(path, chosen, strict=True))

    def _row(self, rates: Callable[[Any], float], lost: Sequence[float] = ()) -> Any:
        return np.array([*map(rates, self._courses), *(lost or [0.0] * len(self._pools))])

    def _demand_rows(self) -> Iterator[tuple[Any, float]]:
        for start, demand in self._problem.demand.items():

            def rate(course: Any, start: Any = start) -> float:
                return 1.0 * bool(course[0].start == start)

            yield self._row(rate), demand

    def _work_rows(self) -> Iterator[tuple[Any, float]]:
        for pool in self._pools:

            def work(course: Any, pool: _OraclePool = pool) -> float:
                return sum(use.work for use, other in zip(course[1], course[2], strict=True) if other is pool)

            load_s = self._components[pool.component].load_s
            lost = min(load_s / self._problem.horizon_s, 1.0) * pool.throughput
            own = [1.0 * (other is pool) for other in self._pools]
            yield self._row(work, [lost * one for one in own]), self._units[pool] * pool.throughput

    def _load_rows(self) -> Iterator[tuple[Any, float]]:
        for name, kind in itertools.product(self._components, self._problem.devices):
            own = [(pool.component, pool.kind) == (name, kind) for pool in self._pools]
            units = sum(self._units[pool] for pool, one in zip(self._pools, own, strict=True) if one)
            loads = max(0, units - self._problem.held.get((kind, name), 0))
            yield self._row(lambda course: 0.0, [-1.0 * one for one in own]), -float(loads)


def timed_large(rng: random.Random) -> tuple[float, float]:
    """Return processor milliseconds for a plan of 300 devices of three kinds, and its shortfall as a share of the best
    that HiGHS finds within BEST_LIMIT_S."""
    problem = large_fleet(rng)
    began = time.thread_time()
    found = AllocationProgram(problem).search(LARGE_GAP, MANY, may_load=True)
    took = (time.thread_time() - began) * 1e3
    best = AllocationProgram(problem).solved_by_highs(BEST_LIMIT_S, gap=0.0)
    if found is None or best is None:
        return took, math.inf
    return took, max(0.0, 1.0 - found.objective / best.objective)


def large_fleet(rng: random.Random) -> AllocationProblem:
    """Return eight models, each about twice as slow as the one before, three registered cascades of 21 thresholds, and
    hits of both kinds."""
    kinds = {"a": 1.0, "b": 1.6, "c": 2.2}

    def costs(first_s: float) -> dict[str, tuple[BatchCost, ...]]:
        bend = rng.uniform(0.85, 1.0)
        return {
            kind: tuple(BatchCost(b, first_s * slowness * (0.3 + 0.7 * b**bend)) for b in BATCHES)
            for kind, slowness in kinds.items()
        }

    models = [Component(f"m{n}", costs(0.025 * 2.2**n), rng.uniform(5, 30), rng.uniform(0, 0.5)) for n in range(8)]
    routes = []
    for number, model in enumerate(models):
        quality = 0.5 + 0.5 * number / 7
        for start, share, kept in (("noise", 1.0, 1.0), ("latent", 0.6, 0.98), ("image", 0.5, 0.97)):
            use = Use(model.name, share, share)
            routes.append(PlannedRoute(f"{start} {model.name}", start, (use,), quality * kept))
    for light, heavy in ((0, 5), (2, 6), (3, 7)):
        low, high = 0.5 + 0.5 * light / 7, 0.5 + 0.5 * heavy / 7
        for threshold in grid(21):
            share = threshold**1.3
            uses = (Use(f"m{light}", 1.0), *([Use(f"m{heavy}", share)] if share else []))
            quality = low + (high - low) * (1 - (1 - share) ** 2)
            routes.append(PlannedRoute(f"cascade {light} {heavy} {threshold}", "noise", uses, quality))
    total = rng.uniform(50, 600)
    shares = {"noise": 0.5, "latent": 0.25, "image": 0.25}
    demand = {start: total * share for start, share in shares.items()}
    held = {(kind, f"m{rng.randrange(8)}"): rng.randint(0, 100) for kind in kinds}
    return AllocationProblem(demand, dict.fromkeys(kinds, 100), models, routes, rng.uniform(5, 20), held)


if __name__ == "__main__":
    sys.exit(main())
