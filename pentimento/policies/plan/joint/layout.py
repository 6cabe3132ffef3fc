"""Lay out a solution of the allocation problem as assignments, pools, cascades and shares.

A model has one pool if every request is in time in batches of one size, else at most `MOST_POOLS`. Their names never
change: a running request finds its pool in every later plan. A pool has every worker of its model that is no slower
than the solution's slowest worker for it: a request in time at that worker is in time at all others. Pools that a
solution does not use have all workers, and no share.

A model that generates without a cascade is followed by the quickest model of the same start, which stands in if the
first would be too late: a cascade without a threshold.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pentimento.domain.fleet import (
    CascadePlan,
    Plan,
    PoolPlan,
    Replica,
    RouteShare,
    StagePlan,
    StartThreshold,
    WorkerAssignment,
)
from pentimento.domain.models import Handover
from pentimento.policies.plan.entry import IMAGE, SPARE, STARTS
from pentimento.policies.plan.inputs import UNNUMBERED, PlanInput, ReplicaView
from pentimento.policies.plan.joint.devices import Counts, settle_sizes, share_out
from pentimento.policies.plan.joint.problem import AllocationProblem, AllocationSolution, PlannedPool
from pentimento.policies.plan.joint.routes import kind_of, quickest_routes
from pentimento.policies.plan.placement import place, scored_stage

MOST_POOLS = 3
# Solvers stop slightly below the best: no request is rejected for that.
_WHOLE = 0.99


def lay_out(
    context: PlanInput,
    kinds: Mapping[str, Sequence[Replica]],
    problem: AllocationProblem,
    solution: AllocationSolution,
    may_load: bool = True,
) -> Plan:
    """Return the plan that implements the solution. `may_load`: whether spare devices may change their models."""
    models = [component.name for component in problem.components]
    counts = share_out(problem, solution, may_load)
    units = settle_sizes(problem, solution, counts, _sizes_in_force(context))
    slots = _slots(units or solution.units, 1 if units is not None else MOST_POOLS)
    if units is None:
        units = _with_spare(problem, solution, counts)
    else:
        slots |= {pool: pool.component for pool in solution.units}
    speeds = _latencies(problem)
    slowest: dict[str, float] = {}
    for pool in units:
        slot = slots.get(pool, pool.component)
        slowest[slot] = max(speeds[pool], slowest.get(slot, 0.0))
    planned = as_planned(context)
    placed = sorted(
        (one for kind, workers in kinds.items() for one in _assigned(planned, kind, workers, units)),
        key=lambda one: one[0].worker_id,
    )
    assignments = tuple(assignment for assignment, _ in placed)
    members = {
        slot: [one.worker_id for one, pool in placed if speeds.get(pool, 0.0) <= slowest[slot]] for slot in slowest
    }
    ways = _ways(problem, solution, slots)
    shares = _shares(ways)
    _serve_the_rest(shares, assignments, models)
    carried = {pool: count * pool.batch_size / speeds[pool] for pool, count in units.items()}
    thinned = _thinned(problem, solution, carried)
    pools = _pools(assignments, members, shares, models, _is_worth_hits(problem, models[0]), thinned)
    admission_rate = solution.served_share if solution.served_share < _WHOLE else 1.0
    return Plan(UNNUMBERED, assignments, pools, admission_rate, cascades=_cascades(ways))


def _is_worth_hits(problem: AllocationProblem, model: str) -> bool:
    """Return whether a hit of an image is worth the device-seconds of this model while it is idle."""
    alone = [route for route in problem.routes if route.start == IMAGE and len(route.uses) == 1]
    # The best route of a model comes last.
    worths = {route.uses[0].component: problem.worth(route) for route in sorted(alone, key=problem.worth)}
    return worths.get(model, -math.inf) >= max(worths.values(), default=-math.inf)


def _thinned(problem: AllocationProblem, solution: AllocationSolution, carried: Mapping[PlannedPool, float]) -> str:
    """Return the model that skips steps; empty for none.

    The solution skips steps for most of its images, and its pools could not carry all images whole (`carried`, runs a
    second). For a smaller part, a pool skips steps only when too many requests wait.
    """
    model = next((one.models[-1] for one in problem.routes if one.left_out > 0.0), "")
    whole = thinned = 0.0
    for course, rate in solution.rates.items():
        planned = problem.route(course.route)
        work = sum(use.work for use in planned.uses if use.component == model)
        work *= rate / (1.0 - planned.left_out)
        whole += work
        thinned += work if planned.left_out > 0.0 else 0.0
    room = sum(runs for pool, runs in carried.items() if pool.component == model)
    return model if thinned > whole / 2.0 and whole > room else ""


def _latencies(problem: AllocationProblem) -> dict[PlannedPool, float]:
    """Return the seconds of a batch, by pool."""
    return {
        PlannedPool(component.name, kind, cost.batch_size): cost.latency_s
        for component in problem.components
        for kind, costs in component.costs.items()
        for cost in costs
    }


def _sizes_in_force(context: PlanInput) -> dict[tuple[str, str], int]:
    """Return the largest batch of the plan in force, by (kind, model)."""
    kinds = {worker.instance_id: kind_of(worker) for worker in context.workers()}
    found: dict[tuple[str, str], int] = {}
    for last in context.last.plan.assignments:
        key = kinds.get(last.worker_id, ""), last.model
        found[key] = max(last.max_batch_size, found.get(key, 0))
    return found


def _with_spare(problem: AllocationProblem, solution: AllocationSolution, counts: Counts) -> dict[PlannedPool, int]:
    """Return the solution's units, with spare devices in the smallest batches of their model."""
    units = dict(solution.units)
    for component in problem.components:
        for kind, costs in component.costs.items():
            own = sorted(p for p in units if (p.component, p.kind) == (component.name, kind))
            spare = counts.get((kind, component.name), 0) - sum(units[pool] for pool in own)
            smallest = own[0] if own else PlannedPool(component.name, kind, costs[0].batch_size)
            if spare > 0:
                units[smallest] = units.get(smallest, 0) + spare
    return units


def _serve_the_rest(
    shares: dict[str, list[RouteShare]], assignments: Sequence[WorkerAssignment], models: Sequence[str]
) -> None:
    """Send requests of a start that the solution does not serve to the last model that a worker holds, since admission
    does not distinguish starts. Changes `shares`."""
    served = {share.route for found in shares.values() for share in found}
    held = {assignment.model for assignment in assignments}
    last = next((model for model in reversed(models) if model in held), None)
    for start in STARTS:
        if start not in served and last is not None:
            shares.setdefault(last, []).append(RouteShare(start, 1.0))


def _slots(units: Mapping[PlannedPool, int], most: int) -> dict[PlannedPool, str]:
    """Return the plan's pool for each pool of the solution, at most `most` a model; the pool with most units has the
    model's name."""
    names: dict[PlannedPool, str] = {}
    taken: dict[str, int] = {}
    for pool in sorted(units, key=lambda pool: (-units[pool], pool)):
        number = taken.get(pool.component, 0)
        taken[pool.component] = number + 1
        names[pool] = pool_name(pool.component, min(number, most - 1))
    return names


def pool_name(model: str, number: int) -> str:
    """Return the name of a model's pool: the model's own for the first."""
    return model if number == 0 else f"{model}.{number}"


def pool_names(model: str) -> tuple[str, ...]:
    """Return the names of all pools that a model may have."""
    return tuple(pool_name(model, number) for number in range(MOST_POOLS))


def _assigned(
    context: PlanInput, kind: str, workers: Sequence[Replica], units: Mapping[PlannedPool, int]
) -> list[tuple[WorkerAssignment, PlannedPool]]:
    """Return the workers of one kind, each with its pool. `context`: as planned."""
    names = {worker.instance_id for worker in workers}
    own = replace(context, replicas=tuple(view for view in context.replicas if view.replica.instance_id in names))
    batches: dict[str, list[int]] = {}
    for pool, count in sorted(units.items()):
        if pool.kind == kind:
            batches.setdefault(pool.component, []).extend([pool.batch_size] * count)
    placed = []
    for assignment in place(own, {model: len(found) for model, found in batches.items()}, {}):
        left = batches.get(assignment.model, [1])
        size = left.pop(0) if len(left) > 1 else left[0]
        pool = PlannedPool(assignment.model, kind, size)
        placed.append((replace(assignment, max_batch_size=size), pool))
    return placed


def as_planned(context: PlanInput) -> PlanInput:
    """Return the input with every worker holding its model of the plan in force."""
    planned = context.planned_models()

    def holding(view: ReplicaView) -> ReplicaView:
        model = planned.get(view.replica.instance_id, view.replica.held_model)
        if model == view.replica.held_model:
            return view
        return replace(view, replica=replace(view.replica, resident_models=(model,)))

    return replace(context, replicas=tuple(map(holding, context.replicas)))


@dataclass(frozen=True)
class _Way:
    """Describe the way of requests of one start: the pool where they enter, and the pool `beyond` it.

    Images with the confidence `threshold` or more stay in the first pool. None: all stay, and the second pool stands in
    if the first would be late. `handover` is the registration of the pair.
    """

    pool: str
    beyond: str = ""
    threshold: float | None = None
    handover: Handover | None = None


Ways = dict[str, dict[_Way, float]]
"""The requests a second of each way, by kind of start."""


def _ways(problem: AllocationProblem, solution: AllocationSolution, slots: Mapping[PlannedPool, str]) -> Ways:
    """Return the ways of a solution: a model without a cascade is followed by the quickest model of the same start."""
    quickest = quickest_routes(problem.components, problem.routes)
    found: Ways = {}
    for course, rate in sorted(solution.rates.items(), key=lambda item: (item[0].route, item[0].pools)):
        planned = problem.route(course.route)
        if planned.start in problem.rooms:
            continue
        first, *rest = (slots.get(pool, pool.component) for pool in course.pools)
        stand_in = quickest[planned.start].uses[0].component if planned.start in quickest else ""
        way = _Way(first, stand_in) if stand_in != course.pools[0].component else _Way(first)
        if rest:
            way = _Way(first, rest[0], planned.threshold, planned.handover)
        rates = found.setdefault(planned.start, {})
        rates[way] = rates.get(way, 0.0) + rate
    return found


def _shares(ways: Ways) -> dict[str, list[RouteShare]]:
    """Return the shares of each pool."""
    found: dict[str, list[RouteShare]] = {}
    for start, rates in sorted(ways.items(), key=lambda item: STARTS.index(item[0])):
        total = sum(rates.values())
        for way, rate in rates.items():
            share = RouteShare(start, min(1.0, rate / total), _way_name(start, way, rates) if way.beyond else "")
            found.setdefault(way.pool, []).append(share)
    return found


def _cascades(ways: Ways) -> tuple[CascadePlan, ...]:
    """Return a cascade for each way with a second pool. Its name does not change with its threshold."""
    found = []
    for start, rates in ways.items():
        for way in rates:
            if way.beyond:
                thresholds = () if way.threshold is None else (StartThreshold(start, way.threshold),)
                stages = (scored_stage(way.pool, thresholds, way.handover), StagePlan(way.beyond))
                found.append(CascadePlan(_way_name(start, way, rates), stages))
    return tuple(found)


def _way_name(start: str, way: _Way, others: Iterable[_Way]) -> str:
    if way.threshold is None:
        return f"{start}:{way.pool}~{way.beyond}"
    alike = sorted(
        other.threshold
        for other in others
        if (other.pool, other.beyond) == (way.pool, way.beyond) and other.threshold is not None
    )
    return f"{start}:{way.pool}>{way.beyond}#{alike.index(way.threshold)}"


def _pools(
    assignments: Sequence[WorkerAssignment],
    members: Mapping[str, Sequence[str]],
    shares: Mapping[str, Sequence[RouteShare]],
    models: Sequence[str],
    is_spare: bool,
    thinned: str,
) -> tuple[PoolPlan, ...]:
    """Return the pools. With `is_spare` the first model, which is the best, takes hits of others while it is idle (as
    under MoDM's monitor, section 5.3). Pools of the model `thinned` skip steps."""
    workers = {model: tuple(a.worker_id for a in assignments if a.model == model) for model in models}
    found = []
    for model in models:
        for number, slot in enumerate(pool_names(model)):
            routes = tuple(shares.get(slot, ()))
            if is_spare and number == 0 and model == models[0] and workers[model]:
                routes = (*routes, RouteShare(SPARE, 1.0))
            own = tuple(name for name in workers[model] if name in members[slot]) if slot in members else workers[model]
            found.append(PoolPlan(slot, model, own, routes, model == thinned))
    # Replaced models serve the requests that wait for them.
    for assignment in assignments:
        if assignment.model not in models:
            found.append(PoolPlan(assignment.model, assignment.model, (assignment.worker_id,)))
    return tuple({pool.pool: pool for pool in found}.values())
