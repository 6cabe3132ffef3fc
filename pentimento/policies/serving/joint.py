"""The policy that plans by the joint problem: all ways to paint at once, on every kind of device."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import Replica
from pentimento.domain.reasons import Reason
from pentimento.policies.allocation import AllocationContext, AllocationDecision
from pentimento.policies.serving.entry import NOISE
from pentimento.policies.serving.joint_backlog import MAY_WAIT, backlog_routes, backlogs, beside_others, with_backlogs
from pentimento.policies.serving.joint_choices import least_s
from pentimento.policies.serving.joint_demand import ROOMS, JointDemand, as_planned_for, observed_demand
from pentimento.policies.serving.joint_plan import decision_of, planned_models, slot_names
from pentimento.policies.serving.joint_problem import Component, JointProblem, JointSolution
from pentimento.policies.serving.joint_program import JointProgram
from pentimento.policies.serving.joint_routes import PlannedRoute, components_of, kind_of, kinds_of, routes_of
from pentimento.policies.serving.joint_single import single_plans
from pentimento.policies.serving.learnt_quality import LearntQuality
from pentimento.policies.serving.one_left import with_pools_of
from pentimento.policies.serving.settings import ServingSettings

# A plan with loads must be better by so much quality a request for each second of the longest one, or a tenth of it in
# the share served, than a plan without; whatever it takes, by `_WON_FREELY`.
_WON_A_SECOND = 0.0005
_WON_FREELY = 0.001
_SERVED = 0.99
_LOADS_IN_DWELL = 6.0
# Where fewer are served a load may be made that takes longer than it is paid for within, and is then paid for within
# twice its time.
_MANY_SERVED, _LOADS_OF_PATIENCE = 0.5, 2.0
# Requests a second of every start that are planned for whatever is seen, so that each has a way to go.
_FLOOR_PER_S = 1e-3


@dataclass(frozen=True)
class _Look:
    """What one plan is made from. `settings`: with the qualities that were learnt."""

    context: AllocationContext
    settings: ServingSettings
    kinds: Mapping[str, Sequence[Replica]]
    components: Sequence[Component]
    demand: JointDemand
    backlogs: Mapping[str, float]
    may_load: bool


@dataclass(frozen=True)
class _Planned:
    """The best plan, and whether it serves everybody in the best way."""

    routes: Mapping[str, PlannedRoute]
    problem: JointProblem
    solution: JointSolution
    is_enough: bool


@dataclass(frozen=True)
class JointAllocator:
    """An allocator that turns profiles, f(t) and demand into the joint problem, and its solution into a plan.

    A load is paid for with the device's seconds out of `horizon_s`, or of twice the longest load where that is more and
    without it fewer than half are served; devices change their models at most once in six of the longest loads, or in
    `dwell_s` where that is shorter, unless the demand cannot be carried otherwise. Demand is forecast over the longest
    load. Room is kept for load that jumps, by the quickest model, where it costs little quality; without such a model
    the settings' `overprovision` is kept. Who waits for longer than the SLO bears is worked off within `horizon_s`,
    where devices can, before quality is won. What cannot be carried in time is not admitted, the worst routes first;
    nobody is refused before anybody came. Where no picture from noise can keep the SLO, what the quickest way takes is
    planned for in its place; `notes` say so. `settings.run_price` is what a whole run of the heavy model must be worth.
    Models without a profile are not planned; `notes` say so. Qualities of light images and hits are estimated from
    comparisons with the heavy model's images, with the settings' as the prior (`learnt_quality`). The search ends `gap`
    (a share) below the best, or after `most_relaxations`: no clock decides which plan it is. Where it ends without a
    proof, the plans of single papers are searched too, and the best plan counts.
    """

    settings: ServingSettings
    horizon_s: float = 60.0
    dwell_s: float = 30.0
    gap: float = 1e-6
    most_relaxations: int = 300

    def __call__(self, context: AllocationContext) -> AllocationDecision:
        demand, kinds = observed_demand(context, self.settings), kinds_of(context)
        learnt = self._learnt(context, demand)
        if not kinds:
            return AllocationDecision(memory=(*demand.values(), *learnt.values()))
        components, notes = components_of(context, self.settings, kinds)
        if not components:
            raise FailedPrecondition(Reason.PROFILE_MISSING, "; ".join(notes) or "no worker can hold any of the models")
        may_load = context.now_s - demand.moved_at_s >= self._dwell_s(components)
        waiting = backlogs(context, components, self.settings.slo_s)
        look = _Look(context, learnt.applied(self.settings), kinds, components, demand, waiting, may_load)
        chosen = self._planned(look)
        solution, is_enough = beside_others(chosen.solution), chosen.is_enough
        decision = decision_of(context, kinds, chosen.problem, solution, chosen.routes, may_load and is_enough)
        demand = replace(demand, moved_at_s=self._moved_at_s(context, decision, demand))
        if not any(seen.arrivals_per_s > 0.0 for seen in context.demand):
            # What hits there will be is not known before anybody came, and so not what can be carried.
            decision = replace(decision, admission_rate=1.0)
        if (kept_s := chosen.problem.slo_s) > self.settings.slo_s:
            notes.append(f"no image can be generated within {self.settings.slo_s:g} s; {kept_s:.3g} s are planned for")
        notes += learnt.notes(self.settings)
        models = (model for model in (self.settings.heavy, self.settings.light, *self.settings.small_models) if model)
        decision = with_pools_of(decision, models, slot_names)
        return replace(decision, memory=(*demand.values(), *learnt.values()), notes=tuple(notes))

    def _learnt(self, context: AllocationContext, demand: JointDemand) -> LearntQuality:
        before = context.last.memory[len(demand.values()) :]
        curve = self.settings.deferral.bent(demand.bend)
        return LearntQuality.of(before, self.settings).seen(context, self.settings, curve)

    def _planned(self, look: _Look) -> _Planned:
        routes = routes_of(look.context, look.settings, look.components, look.demand)
        planned = as_planned_for(look.context, look.settings, look.demand)
        problem = self._problem(look.context, look.kinds, look.components, routes, planned)
        problem = with_backlogs(problem, look.backlogs)
        solution, is_enough = self._solve(problem, look.may_load)
        patient = replace(problem, horizon_s=_LOADS_OF_PATIENCE * _longest_load_s(problem.components))
        if solution.served_share < _MANY_SERVED and patient.horizon_s > problem.horizon_s:
            # Within the horizon no load of theirs pays, and so they would be refused for as long as they come.
            problem = patient
            solution, is_enough = self._solve(problem, look.may_load)
        late = backlog_routes(look.backlogs)
        return _Planned({one.route.name: one for one in (*routes, *late)}, problem, solution, is_enough)

    def _problem(
        self,
        context: AllocationContext,
        kinds: Mapping[str, Sequence[Replica]],
        components: Sequence[Component],
        routes: Sequence[PlannedRoute],
        demand: JointDemand,
    ) -> JointProblem:
        ahead_s = _longest_load_s(components)
        # Room for those who come by chance is kept by the quickest model, where that is another than the heavy one.
        has_room = any(planned.route.start in ROOMS for planned in routes)
        beyond = 1.0 if has_room else self.settings.overprovision
        wanted = {start: rate * beyond for start, rate in demand.by_start(ahead_s).items()}
        problem = JointProblem(
            {start: max(rate, _FLOOR_PER_S) for start, rate in wanted.items()},
            {kind: len(workers) for kind, workers in kinds.items()},
            components,
            [planned.route for planned in routes],
            self.settings.slo_s,
            _held(context),
            self.horizon_s,
            rooms=ROOMS,
            second_price=self._second_price(components),
        )
        # An SLO that no picture can keep is no reason to paint none: deadlines are the clients' own.
        quickest_s, planned = least_s(problem, NOISE), sum(wanted.values())
        # Who may wait while devices load another model needs no room now.
        borne = MAY_WAIT * max(problem.slo_s - quickest_s, 0.0) / (self.horizon_s + ahead_s) * planned
        surges = demand.surges(planned, borne)
        return replace(problem, slo_s=max(problem.slo_s, quickest_s), demand={**problem.demand, **surges})

    def _second_price(self, components: Sequence[Component]) -> float:
        """What a second of a device must add to the quality of a request: the price of a heavy run is that of its
        seconds."""
        heavy = next((one for one in components if one.name == self.settings.heavy), components[0])
        speeds = (cost.throughput for costs in heavy.costs.values() for cost in costs)
        return self.settings.run_price * max(speeds, default=0.0)

    def _dwell_s(self, components: Sequence[Component]) -> float:
        """Devices that change their models at most so often load for a sixth of their time at most; models that are
        loaded in no time may be changed at every look."""
        return min(self.dwell_s, _LOADS_IN_DWELL * _longest_load_s(components))

    def _solve(self, problem: JointProblem, may_load: bool) -> tuple[JointSolution, bool]:
        """The solution, and whether it serves everybody in the best way. What devices hold stays while nothing is won
        by a load, or within the dwell time while all are served."""
        program = JointProgram(problem)
        stays = program.search(self.gap, self.most_relaxations, may_load=False)
        longest_s = _longest_load_s(problem.components)
        won = max(_WON_FREELY, _WON_A_SECOND * longest_s) * problem.wanted
        if stays is not None and stays.objective >= problem.bound - won:
            return stays, True
        if stays is not None and stays.served_share > _SERVED and not may_load:
            return stays, False
        above = stays.objective + won if stays is not None else -math.inf
        solution = program.search(self.gap, self.most_relaxations, may_load=True, above=above) or stays
        if solution is None or not solution.is_optimal:
            solution = self._best_single(problem, solution)
        if solution is None:
            raise FailedPrecondition("NO_PLAN", f"no plan was found in {self.most_relaxations} steps of the search")
        return solution, False

    def _best_single(self, problem: JointProblem, found: JointSolution | None) -> JointSolution | None:
        """Return the best of a search that was not ended and of the plans of single papers."""
        singles = single_plans(problem, self.settings.heavy, self.settings.light).values()
        searches = (JointProgram(one).search(self.gap, self.most_relaxations, may_load=True) for one in singles)
        others = [other for other in searches if other is not None]
        return max([*([found] if found is not None else []), *others], key=lambda one: one.objective, default=None)

    def _moved_at_s(self, context: AllocationContext, decision: AllocationDecision, demand: JointDemand) -> float:
        before = {assignment.worker_id: assignment.model for assignment in context.last.assignments}
        moved = any(before.get(one.worker_id, one.model) != one.model for one in decision.assignments)
        return context.now_s if moved else demand.moved_at_s


def _longest_load_s(components: Sequence[Component]) -> float:
    """The seconds that the slowest of them takes."""
    return max(component.load_s for component in components)


def _held(context: AllocationContext) -> dict[tuple[str, str], int]:
    """Units by (kind, model): what workers hold, or are on their way to hold by the plan in force."""
    planned, kinds = planned_models(context), {one.instance_id: kind_of(one) for one in context.workers()}
    return dict(Counter((kinds[name], model) for name, model in planned.items()))
