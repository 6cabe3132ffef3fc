"""The policy that plans by the joint problem: all ways to paint at once, on every kind of device."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import Replica
from pentimento.policies.allocation import AllocationContext, AllocationDecision
from pentimento.policies.serving.joint_demand import ROOMS, JointDemand, as_planned_for, observed_demand
from pentimento.policies.serving.joint_plan import as_planned, decision_of
from pentimento.policies.serving.joint_problem import Component, JointProblem, JointSolution
from pentimento.policies.serving.joint_program import JointProgram
from pentimento.policies.serving.joint_routes import PlannedRoute, components_of, kind_of, kinds_of, routes_of
from pentimento.policies.serving.settings import ServingSettings

# A plan with loads must be better by so much quality a request, or a tenth of it in the share served, than one without.
_WON = 0.01
# The same where loads take no time.
_WON_FREELY = 0.001
_SERVED = 0.99
_LOADS_IN_DWELL = 6.0
# Requests a second of every start that are planned for whatever is seen, so that each has a way to go.
_FLOOR_PER_S = 1e-3


@dataclass(frozen=True)
class JointAllocator:
    """An allocator that turns profiles, f(t) and demand into the joint problem, and its solution into a plan.

    A load is paid for with the device's seconds out of `horizon_s`; devices change their models at most once in six of
    the longest loads, or in `dwell_s` where that is shorter, unless the demand cannot be carried otherwise. Demand is
    forecast over the longest load. Room is kept for load that jumps, by the quickest model, where it costs little
    quality; without such a model the settings' `overprovision` is kept. What cannot be carried in time is not
    admitted, the worst routes first; nobody is refused before anybody came. `settings.run_price` is what a whole run of
    the heavy model must be worth. Models without a profile are not planned; `notes` say so.
    The search ends `gap` (a share) below the best, or after `most_relaxations`: no clock decides which plan it is.
    """

    settings: ServingSettings
    horizon_s: float = 60.0
    dwell_s: float = 30.0
    gap: float = 1e-5
    most_relaxations: int = 300

    def __call__(self, context: AllocationContext) -> AllocationDecision:
        demand, kinds = observed_demand(context, self.settings), kinds_of(context)
        if not kinds:
            return AllocationDecision(memory=demand.values())
        components, notes = components_of(context, self.settings, kinds)
        if not components:
            raise FailedPrecondition("PROFILE_MISSING", "; ".join(notes) or "no worker can hold any of the models")
        routes = routes_of(context, self.settings, components, demand)
        problem = self._problem(context, kinds, components, routes, as_planned_for(context, self.settings, demand))
        may_load = context.now_s - demand.moved_at_s >= self._dwell_s(components)
        solution, is_enough = self._solve(problem, may_load)
        by_name = {planned.route.name: planned for planned in routes}
        decision = decision_of(context, kinds, problem, solution, by_name, may_load and is_enough)
        demand = replace(demand, moved_at_s=self._moved_at_s(context, decision, demand))
        if not any(seen.arrivals_per_s > 0.0 for seen in context.demand):
            # What hits there will be is not known before anybody came, and so not what can be carried.
            decision = replace(decision, admission_rate=1.0)
        return replace(decision, memory=demand.values(), notes=tuple(notes))

    def _problem(
        self,
        context: AllocationContext,
        kinds: Mapping[str, Sequence[Replica]],
        components: Sequence[Component],
        routes: Sequence[PlannedRoute],
        demand: JointDemand,
    ) -> JointProblem:
        ahead_s = max(component.load_s for component in components)
        # Room for those who come by chance is kept by the quickest model, where that is another than the heavy one.
        has_room = any(planned.route.start in ROOMS for planned in routes)
        beyond = 1.0 if has_room else self.settings.overprovision
        wanted = {start: rate * beyond for start, rate in demand.by_start(ahead_s).items()}
        return JointProblem(
            {start: max(rate, _FLOOR_PER_S) for start, rate in wanted.items()} | demand.surges(sum(wanted.values())),
            {kind: len(workers) for kind, workers in kinds.items()},
            components,
            [planned.route for planned in routes],
            self.settings.slo_s,
            _held(context),
            self.horizon_s,
            rooms=ROOMS,
            second_price=self._second_price(components),
        )

    def _second_price(self, components: Sequence[Component]) -> float:
        """What a second of a device must add to the quality of a request: the price of a heavy run is that of its
        seconds."""
        heavy = next((one for one in components if one.name == self.settings.heavy), components[0])
        return self.settings.run_price * max(cost.throughput for costs in heavy.costs.values() for cost in costs)

    def _dwell_s(self, components: Sequence[Component]) -> float:
        """Devices that change their models at most so often load for a sixth of their time at most; models that are
        loaded in no time may be changed at every look."""
        return min(self.dwell_s, _LOADS_IN_DWELL * max(component.load_s for component in components))

    def _solve(self, problem: JointProblem, may_load: bool) -> tuple[JointSolution, bool]:
        """The solution, and whether it serves everybody in the best way. What devices hold stays while nothing is won
        by a load, or within the dwell time while all are served."""
        program = JointProgram(problem)
        stays = program.search(self.gap, self.most_relaxations, may_load=False)
        loads = any(component.load_s > 0.0 for component in problem.components)
        won = (_WON if loads else _WON_FREELY) * problem.wanted
        if stays is not None and stays.objective >= problem.bound - won:
            return stays, True
        if stays is not None and stays.served_share > _SERVED and not may_load:
            return stays, False
        above = stays.objective + won if stays is not None else -math.inf
        solution = program.search(self.gap, self.most_relaxations, may_load=True, above=above) or stays
        if solution is None:
            raise FailedPrecondition("NO_PLAN", f"no plan was found in {self.most_relaxations} steps of the search")
        return solution, False

    def _moved_at_s(self, context: AllocationContext, decision: AllocationDecision, demand: JointDemand) -> float:
        before = {assignment.worker_id: assignment.model for assignment in context.last.assignments}
        moved = any(before.get(one.worker_id, one.model) != one.model for one in decision.assignments)
        return context.now_s if moved else demand.moved_at_s


def _held(context: AllocationContext) -> dict[tuple[str, str], int]:
    """Units by (kind, model): what workers hold, or are on their way to hold by the plan in force."""
    workers = as_planned(context).workers()
    return dict(Counter((kind_of(worker), worker.resident_models[0]) for worker in workers if worker.resident_models))
