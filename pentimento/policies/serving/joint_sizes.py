"""Which of equally good plans: one pool a model, in the smallest batches that carry the load, nobody idle.

Solvers return any of the best solutions, and near the best ones a little noise in the demand makes it another one each
time. What a solution says of rates stands; its units are told anew here, from the devices that each model has.
"""

from collections.abc import Iterator, Mapping

from pentimento.policies.serving.costs import BatchCost
from pentimento.policies.serving.joint_problem import Component, JointProblem, JointSolution, PlannedPool
from pentimento.policies.serving.joint_spare import work_of

# Utilisation up to which batches are large enough, and below which smaller ones are gone back to.
_ROOM = 0.8
_MUCH_ROOM = 0.6

Counts = Mapping[tuple[str, str], int]
"""By (kind, model)."""


def settled_units(
    problem: JointProblem, solution: JointSolution, counts: Counts, before: Counts
) -> dict[PlannedPool, int] | None:
    """Return the units of a plan that carries the solution's rates with one batch size a model and kind of device.

    `counts`: the devices that each model has, those that nobody needs included; `before`: the sizes in force. Those
    are kept unless they are too small, or smaller ones have much room. None where one size cannot keep the SLO.
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


def keeps_slo(problem: JointProblem, solution: JointSolution, felt_s: Mapping[str, float]) -> bool:
    """Return whether every request of a solution is in time where a run feels like `felt_s` seconds, by component."""
    used, waits_s = {course.route for course in solution.rates}, {one.name: one.wait_s for one in problem.components}
    return all(
        sum(waits_s[use.component] + use.path * felt_s.get(use.component, 0.0) for use in route.on_path)
        <= problem.slo_s * (1 + 1e-9)
        for route in problem.routes
        if route.name in used
    )


class _Sizes:
    """The sizes of one component: for a limit of the seconds of a batch the quickest on each kind of device."""

    def __init__(self, problem: JointProblem, solution: JointSolution, component: Component, counts: Counts) -> None:
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
        """Those of small batches first."""
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
        """Requests a second, whole runs. A device that loads carries nothing meanwhile."""
        lost = min(self._component.load_s / self._horizon_s, 1.0)
        new = {kind: max(0, n - self._held.get((kind, self._component.name), 0)) for kind, n in self._units.items()}
        return sum((n - lost * new[kind]) * sizes[kind].throughput for kind, n in self._units.items())


def _slowest_s(sizes: Mapping[str, BatchCost]) -> float:
    return max(cost.latency_s for cost in sizes.values())
