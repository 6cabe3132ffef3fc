"""The policy that plans by the joint problem: all ways to paint at once, on every kind of device."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import Replica
from pentimento.policies.allocation import AllocationContext, AllocationDecision
from pentimento.policies.serving.entry import IMAGE, LATENT, NOISE
from pentimento.policies.serving.joint_demand import JointDemand, observed_demand
from pentimento.policies.serving.joint_plan import decision_of
from pentimento.policies.serving.joint_problem import Component, JointProblem, JointSolution, PlannedPool, solve_jointly
from pentimento.policies.serving.joint_routes import PlannedRoute, components_of, kind_of, kinds_of, routes_of
from pentimento.policies.serving.settings import ServingSettings

# Requests a second of every start that are planned for whatever is seen, so that each has a way to go.
_FLOOR_PER_S = 1e-3


@dataclass(frozen=True)
class JointAllocator:
    """An allocator that turns profiles, f(t) and demand into the joint problem, and its solution into a plan.

    A load is paid for with the device's seconds out of `horizon_s`; devices change their models at most once in
    `dwell_s`, unless the demand cannot be carried otherwise. Demand is forecast over the longest load. What cannot be
    carried in time is not admitted, the worst routes first. Models without a profile are not planned; `notes` say so.
    """

    settings: ServingSettings
    horizon_s: float = 60.0
    dwell_s: float = 30.0
    limit_s: float = 0.4
    gap: float = 2e-3

    def __call__(self, context: AllocationContext) -> AllocationDecision:
        demand, kinds = observed_demand(context, self.settings), kinds_of(context)
        if not kinds:
            return AllocationDecision(memory=demand.values())
        components, notes = components_of(context, self.settings, kinds)
        if not components:
            raise FailedPrecondition("PROFILE_MISSING", "; ".join(notes) or "no worker can hold any of the models")
        routes = routes_of(context, self.settings, components, demand)
        solution = self._solve(context, kinds, components, routes, demand)
        names = [component.name for component in components]
        by_name = {planned.route.name: planned for planned in routes}
        latency_s = {
            PlannedPool(component.name, kind, cost.batch_size): cost.latency_s
            for component in components
            for kind, costs in component.costs.items()
            for cost in costs
        }
        decision = decision_of(context, kinds, solution, by_name, names, self._sizes(components), latency_s)
        demand = replace(demand, moved_at_s=self._moved_at_s(context, decision, demand))
        return replace(decision, memory=demand.values(), notes=tuple(notes))

    def _solve(
        self,
        context: AllocationContext,
        kinds: Mapping[str, Sequence[Replica]],
        components: Sequence[Component],
        routes: Sequence[PlannedRoute],
        demand: JointDemand,
    ) -> JointSolution:
        ahead_s = max(component.load_s for component in components)
        wanted = demand.by_start(ahead_s)
        problem = JointProblem(
            {start: max(wanted[start] * self.settings.overprovision, _FLOOR_PER_S) for start in (NOISE, LATENT, IMAGE)},
            {kind: len(workers) for kind, workers in kinds.items()},
            components,
            [planned.route for planned in routes],
            self.settings.slo_s,
            _held(context),
            self.horizon_s,
        )
        if context.now_s - demand.moved_at_s < self.dwell_s:
            stays = [replace(component, load_s=self.horizon_s) for component in components]
            solution = solve_jointly(replace(problem, components=stays), self.limit_s, self.gap)
            if solution is not None and solution.served_share > 0.99:
                return solution
        solution = solve_jointly(problem, self.limit_s, self.gap)
        if solution is None:
            raise FailedPrecondition("NO_PLAN", f"no plan was found within {self.limit_s:g} s")
        return solution

    def _sizes(self, components: Sequence[Component]) -> dict[tuple[str, str], int]:
        """The largest batch that is done within half of the SLO, for devices that nobody needs."""
        found = {}
        for component in components:
            for kind, costs in component.costs.items():
                in_time = [cost.batch_size for cost in costs if 2.0 * cost.latency_s <= self.settings.slo_s]
                found[kind, component.name] = max(in_time, default=costs[0].batch_size)
        return found

    def _moved_at_s(self, context: AllocationContext, decision: AllocationDecision, demand: JointDemand) -> float:
        before = {assignment.worker_id: assignment.model for assignment in context.last.assignments}
        moved = any(before.get(one.worker_id, one.model) != one.model for one in decision.assignments)
        return context.now_s if moved else demand.moved_at_s


def _held(context: AllocationContext) -> dict[tuple[str, str], int]:
    """Units by (kind, model): what workers hold, or are on their way to hold by the plan in force."""
    assigned = {assignment.worker_id: assignment.model for assignment in context.last.assignments}
    return dict(
        Counter(
            (kind_of(worker), assigned.get(worker.instance_id, worker.resident_models[0]))
            for worker in context.workers()
            if worker.resident_models
        )
    )
