"""From a solution of the joint problem to assignments, pools, cascades and shares.

A model has at most `SLOTS` pools with names that never change: a request on its way finds its pool in every later plan.
A pool has every worker of its model that is no slower than those that the solution has for it: whoever is in time at
one is in time at all of them. Pools that a solution does not use have all workers, and nobody is sent there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pentimento.domain.fleet import (
    CascadePlan,
    PoolPlan,
    Replica,
    RouteShare,
    StagePlan,
    StartThreshold,
    WorkerAssignment,
)
from pentimento.policies.allocation import AllocationContext, AllocationDecision
from pentimento.policies.serving.entry import SPARE, STARTS
from pentimento.policies.serving.joint_problem import Course, JointSolution, PlannedPool
from pentimento.policies.serving.joint_routes import PlannedRoute
from pentimento.policies.serving.placement import place

SLOTS = 3
# Solvers stop a little short of what is best; nobody is refused for that.
_WHOLE = 0.99


def decision_of(
    context: AllocationContext,
    kinds: Mapping[str, Sequence[Replica]],
    solution: JointSolution,
    routes: Mapping[str, PlannedRoute],
    models: Sequence[str],
    sizes: Mapping[tuple[str, str], int],
    latency_s: Mapping[PlannedPool, float],
) -> AllocationDecision:
    """Return the decision that carries the solution out. `models` in the order in which they get devices that nobody
    needs; `sizes`: batches of those, by (kind, model); `latency_s`: seconds of a batch."""
    slots = _slots(solution)
    assignments: list[WorkerAssignment] = []
    speeds: dict[str, float] = {}
    for kind, workers in kinds.items():
        for assignment in _assigned(context, kind, workers, solution, models, sizes):
            assignments.append(assignment)
            planned = PlannedPool(assignment.model, kind, assignment.max_batch_size)
            speeds[assignment.worker_id] = latency_s.get(planned, 0.0)
    slowest: dict[str, float] = {}
    for pool, slot in slots.items():
        slowest[slot] = max(latency_s[pool], slowest.get(slot, 0.0))
    members = {
        slot: [a.worker_id for a in sorted(assignments, key=_by_worker) if speeds[a.worker_id] <= slowest[slot]]
        for slot in slowest
    }
    entries = _Entries(slots, routes)
    for course, rate in sorted(solution.rates.items(), key=lambda item: (item[0].route, item[0].pools)):
        entries.add(course, rate)
    assignments.sort(key=_by_worker)
    shares = entries.shares()
    _serve_the_rest(shares, assignments, models)
    pools = _pools(assignments, members, shares, models)
    admission_rate = solution.served_share if solution.served_share < _WHOLE else 1.0
    return AllocationDecision(tuple(assignments), pools, admission_rate, cascades=entries.cascades())


def _serve_the_rest(
    shares: dict[str, list[RouteShare]], assignments: Sequence[WorkerAssignment], models: Sequence[str]
) -> None:
    """Changes `shares`: what comes of a start that the solution does not serve goes to the last model that anybody
    holds. Who is admitted is not told apart by starts."""
    served = {share.route for found in shares.values() for share in found}
    held = {assignment.model for assignment in assignments}
    last = next((model for model in reversed(models) if model in held), None)
    for start in STARTS:
        if start not in served and last is not None:
            shares.setdefault(last, []).append(RouteShare(start, 1.0))


def _slots(solution: JointSolution) -> dict[PlannedPool, str]:
    """The plan's pool of each of the solution's; the one with most units keeps the model's name."""
    names: dict[PlannedPool, str] = {}
    taken: dict[str, int] = {}
    for pool in sorted(solution.units, key=lambda pool: (-solution.units[pool], pool)):
        number = taken.get(pool.component, 0)
        taken[pool.component] = number + 1
        names[pool] = slot_name(pool.component, min(number, SLOTS - 1))
    return names


def slot_name(model: str, number: int) -> str:
    """Return the name of a model's pool: the model's own for the first."""
    return model if number == 0 else f"{model}.{number}"


def _assigned(
    context: AllocationContext,
    kind: str,
    workers: Sequence[Replica],
    solution: JointSolution,
    models: Sequence[str],
    sizes: Mapping[tuple[str, str], int],
) -> list[WorkerAssignment]:
    """The workers of one kind."""
    names = {worker.instance_id for worker in workers}
    own = replace(context, replicas=tuple(view for view in context.replicas if view.replica.instance_id in names))
    batches: dict[str, list[int]] = {model: [] for model in models}
    for pool, units in sorted(solution.units.items()):
        if pool.kind == kind:
            batches[pool.component] += [pool.batch_size] * units
    counts = _with_spare(own, {model: len(found) for model, found in batches.items()}, models, sizes, kind)
    placed = []
    for assignment in place(own, counts, {}):
        model = assignment.model
        left = batches.get(model, [])
        size = left.pop(0) if left else sizes.get((kind, model), 1)
        placed.append(replace(assignment, max_batch_size=size))
    return placed


def _by_worker(assignment: WorkerAssignment) -> str:
    return assignment.worker_id


def _with_spare(
    context: AllocationContext,
    counts: dict[str, int],
    models: Sequence[str],
    sizes: Mapping[tuple[str, str], int],
    kind: str,
) -> dict[str, int]:
    """Devices that nobody needs keep their models, as far as those are used; the others take the first that fits."""
    held: dict[str, int] = {}
    for worker in context.workers():
        resident = worker.resident_models[0] if worker.resident_models else ""
        held[resident] = held.get(resident, 0) + 1
    spare = len(context.workers()) - sum(counts.values())
    for model in models:
        more = min(max(held.get(model, 0) - counts[model], 0), spare) if (kind, model) in sizes else 0
        counts[model] += more
        spare -= more
    first = next((model for model in models if (kind, model) in sizes), None)
    if first is not None:
        counts[first] += max(spare, 0)
    return counts


@dataclass(frozen=True)
class _Way:
    """How requests of one start go: the pool where they enter, and from which confidence on they stay there."""

    pool: str
    beyond: str = ""
    threshold: float = 0.0


class _Entries:
    """The shares of each way, by kind of start."""

    def __init__(self, slots: Mapping[PlannedPool, str], routes: Mapping[str, PlannedRoute]) -> None:
        self._slots = slots
        self._routes = routes
        self._rates: dict[str, dict[_Way, float]] = {}

    def add(self, course: Course, rate: float) -> None:
        """Changes state."""
        planned = self._routes[course.route]
        first, *rest = (self._slots.get(pool, pool.component) for pool in course.pools)
        way = _Way(first, rest[0], planned.threshold) if rest else _Way(first)
        rates = self._rates.setdefault(planned.route.start, {})
        rates[way] = rates.get(way, 0.0) + rate

    def shares(self) -> dict[str, list[RouteShare]]:
        """By pool."""
        found: dict[str, list[RouteShare]] = {}
        for start, rates in self._rates.items():
            total = sum(rates.values())
            for way, rate in rates.items():
                share = RouteShare(start, min(1.0, rate / total), self._name(start, way) if way.beyond else "")
                found.setdefault(way.pool, []).append(share)
        return found

    def cascades(self) -> tuple[CascadePlan, ...]:
        """One for each way that may go on. Its name does not change with its threshold."""
        return tuple(
            CascadePlan(
                self._name(start, way),
                (StagePlan(way.pool, (StartThreshold(start, way.threshold),)), StagePlan(way.beyond)),
            )
            for start, rates in self._rates.items()
            for way in rates
            if way.beyond
        )

    def _name(self, start: str, way: _Way) -> str:
        alike = sorted(
            other.threshold for other in self._rates[start] if (other.pool, other.beyond) == (way.pool, way.beyond)
        )
        return f"{start}:{way.pool}>{way.beyond}#{alike.index(way.threshold)}"


def _pools(
    assignments: Sequence[WorkerAssignment],
    members: Mapping[str, Sequence[str]],
    shares: Mapping[str, Sequence[RouteShare]],
    models: Sequence[str],
) -> tuple[PoolPlan, ...]:
    """The first model, which paints best, takes hits of others while it has nothing of its own (M4)."""
    workers = {model: tuple(a.worker_id for a in assignments if a.model == model) for model in models}
    found = []
    for model in models:
        for number in range(SLOTS):
            slot = slot_name(model, number)
            routes = tuple(shares.get(slot, ()))
            if number == 0 and model == models[0] and workers[model]:
                routes = (*routes, RouteShare(SPARE, 1.0))
            own = tuple(name for name in workers[model] if name in members[slot]) if slot in members else workers[model]
            found.append(PoolPlan(slot, model, own, routes))
    # Models on their way out serve what waits for them.
    for assignment in assignments:
        if assignment.model not in models:
            found.append(PoolPlan(assignment.model, assignment.model, (assignment.worker_id,)))
    return tuple({pool.pool: pool for pool in found}.values())
