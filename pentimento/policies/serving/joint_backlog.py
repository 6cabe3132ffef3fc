"""Requests that wait for longer than the SLO bears: demand beside that which comes.

Averages of arrivals know nothing of them. A plan that has devices carry just those, in the best way, leaves the others
waiting for as long as it stands, and all who come after them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pentimento.policies.allocation import AllocationContext
from pentimento.policies.serving.demand import demand_of
from pentimento.policies.serving.joint_problem import Component, Course, JointProblem, JointSolution, PaintingRoute, Use
from pentimento.policies.serving.joint_routes import PlannedRoute, kind_of

# What one of them a second is worth: as much as quality can be, and less than anybody who comes.
BACKLOG_WORTH = 1.0
# What their routes' names begin with.
_BACKLOG = "backlog of "
# Of the time that the SLO leaves beside a run, requests may wait so much.
MAY_WAIT = 0.5


def backlogs(context: AllocationContext, components: Iterable[Component], slo_s: float) -> dict[str, float]:
    """Return how many requests wait for each component beyond those that its devices begin with in half of the time
    that the SLO leaves beside a run: as many as do so now and have done on average since the last look. Components
    without such are left out."""
    kinds = {worker.instance_id: kind_of(worker) for worker in context.workers()}
    found = {}
    for component in components:
        asked = demand_of(context, component.name)
        mean = asked.mean_queue_length
        waiting = asked.queue_length if mean is None else min(mean, asked.queue_length)
        if (beyond := waiting - _begun_in_time(context, kinds, component, slo_s)) > 0.0:
            found[component.name] = beyond
    return found


def backlog_routes(components: Iterable[str]) -> list[PlannedRoute]:
    """Return their ways, which are named as the starts that they are of: a whole run of what they wait for."""
    names = ((f"{_BACKLOG}{component}", component) for component in components)
    return [
        PlannedRoute(PaintingRoute(name, name, (Use(component, 1.0),), 0.0), component) for name, component in names
    ]


def with_backlogs(problem: JointProblem, waiting: Mapping[str, float]) -> JointProblem:
    """Return the problem with so many requests a component that are to be worked off within its horizon."""
    if not waiting:
        return problem
    routes = [planned.route for planned in backlog_routes(waiting)]
    rates = {route.start: count / problem.horizon_s for route, count in zip(routes, waiting.values(), strict=True)}
    return replace(
        problem,
        demand={**problem.demand, **rates},
        routes=[*problem.routes, *routes],
        rooms={**problem.rooms, **dict.fromkeys(rates, BACKLOG_WORTH)},
    )


def beside_others(solution: JointSolution) -> JointSolution:
    """Return the solution with those who wait in the batches of others who go to their model, where there are any: they
    wait in the pool of these already, and devices in batches of another size would be in none that anybody waits in."""
    late = [course for course in solution.rates if course.route.startswith(_BACKLOG)]
    used = {pool for course in solution.rates if course not in late for pool in course.pools}
    units, rates = dict(solution.units), dict(solution.rates)
    for course in late:
        (alone,) = course.pools
        others = [pool for pool in used if (pool.component, pool.kind) == (alone.component, alone.kind)]
        if alone not in used and others:
            beside = max(others, key=lambda pool: (units.get(pool, 0), pool))
            units[beside] = units.get(beside, 0) + units.pop(alone, 0)
            moved = Course(course.route, (beside,))
            rates[moved] = rates.get(moved, 0.0) + rates.pop(course)
    return replace(solution, units=units, rates=rates)


def _begun_in_time(context: AllocationContext, kinds: Mapping[str, str], component: Component, slo_s: float) -> float:
    """By the devices that the plan in force has for it."""
    costs = [
        next((cost for cost in of_kind if cost.batch_size == one.max_batch_size), of_kind[0])
        for one in context.last.assignments
        if one.model == component.name and (of_kind := component.costs.get(kinds.get(one.worker_id, "")))
    ]
    longest_s = max((cost.latency_s for cost in costs), default=0.0)
    return MAY_WAIT * max(slo_s - longest_s, 0.0) * sum(cost.throughput for cost in costs)
