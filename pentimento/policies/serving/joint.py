"""The policy that plans by the joint problem: all ways to paint at once, on every kind of device."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import CachePlan, Replica
from pentimento.domain.reasons import Reason
from pentimento.policies.allocation import AllocationContext, AllocationDecision
from pentimento.policies.serving.entry import NOISE
from pentimento.policies.serving.joint_backlog import backlog_routes, backlogs, beside_others, with_backlogs
from pentimento.policies.serving.joint_choices import least_s
from pentimento.policies.serving.joint_demand import ROOMS, JointDemand, as_planned_for, observed_demand
from pentimento.policies.serving.joint_plan import decision_of, planned_models, slot_names
from pentimento.policies.serving.joint_problem import Component, JointProblem, JointSolution
from pentimento.policies.serving.joint_program import JointProgram
from pentimento.policies.serving.joint_reuse import (
    OWN,
    as_reused,
    known_under,
    level_of,
    quality_kept,
    settings_under,
    steps_away,
)
from pentimento.policies.serving.joint_routes import PlannedRoute, components_of, kind_of, kinds_of, routes_of
from pentimento.policies.serving.one_left import with_pools_of
from pentimento.policies.serving.settings import ServingSettings

# A plan with loads must be better by so much quality a request for each second of the longest one, or a tenth of it in
# the share served, than a plan without; whatever it takes, by `_WON_FREELY`.
_WON_A_SECOND = 0.0005
_WON_FREELY = 0.001
# One in which hits use more or less of the cache's tables.
_WON_BY_REUSE = 0.01
_SERVED = 0.99
_LOADS_IN_DWELL = 6.0
# Where fewer are served a load may be made that takes longer than it is paid for within, and is then paid for within
# twice its time.
_MANY_SERVED, _LOADS_OF_PATIENCE = 0.5, 2.0
# Requests a second of every start that are planned for whatever is seen, so that each has a way to go.
_FLOOR_PER_S = 1e-3
# Seconds after a change of how much hits use of the cache's tables before they are to use less.
_REUSE_DWELL_S = 30.0


@dataclass(frozen=True)
class _Look:
    """What one plan is made from."""

    context: AllocationContext
    kinds: Mapping[str, Sequence[Replica]]
    components: Sequence[Component]
    demand: JointDemand
    backlogs: Mapping[str, float]
    may_load: bool


@dataclass(frozen=True)
class _Planned:
    """What is best where hits use as much of the cache's tables as `level` says, and whether that serves everybody in
    the best way."""

    level: CachePlan
    routes: Mapping[str, PlannedRoute]
    problem: JointProblem
    solution: JointSolution
    is_enough: bool

    def is_above(self, objective: float) -> bool:
        """Return whether it is worth more than that."""
        return self.solution.objective > objective


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
    Models without a profile are not planned; `notes` say so.
    With `settings.plans_reuse` plans say how much of the cache's tables hits use; caches must follow plans then.
    The search ends `gap` (a share) below the best, or after `most_relaxations`: no clock decides which plan it is.
    """

    settings: ServingSettings
    horizon_s: float = 60.0
    dwell_s: float = 30.0
    gap: float = 1e-6
    most_relaxations: int = 300

    def __call__(self, context: AllocationContext) -> AllocationDecision:
        demand, kinds = observed_demand(context, self.settings), kinds_of(context)
        if not kinds:
            return AllocationDecision(memory=demand.values())
        components, notes = components_of(context, self.settings, kinds)
        if not components:
            raise FailedPrecondition(Reason.PROFILE_MISSING, "; ".join(notes) or "no worker can hold any of the models")
        may_load = context.now_s - demand.moved_at_s >= self._dwell_s(components)
        before = level_of(context.last.cache) if self.settings.plans_reuse else OWN
        waiting = backlogs(context, components, self.settings.slo_s)
        look = _Look(context, kinds, components, demand, waiting, may_load)
        chosen = self._chosen(look, before)
        solution, is_enough = beside_others(chosen.solution), chosen.is_enough
        decision = decision_of(context, kinds, chosen.problem, solution, chosen.routes, may_load and is_enough)
        demand = replace(demand, moved_at_s=self._moved_at_s(context, decision, demand))
        if chosen.level != before:
            demand = replace(known_under(demand, before, chosen.level), reused_at_s=context.now_s)
        if not any(seen.arrivals_per_s > 0.0 for seen in context.demand):
            # What hits there will be is not known before anybody came, and so not what can be carried.
            decision = replace(decision, admission_rate=1.0)
        if (kept_s := chosen.problem.slo_s) > self.settings.slo_s:
            notes.append(f"no picture can be painted within {self.settings.slo_s:g} s; {kept_s:.3g} s are planned for")
        models = (model for model in (self.settings.heavy, self.settings.light, *self.settings.small_models) if model)
        decision = with_pools_of(decision, models, slot_names)
        return replace(decision, memory=demand.values(), notes=tuple(notes), cache=chosen.level)

    def _chosen(self, look: _Look, before: CachePlan) -> _Planned:
        """The best plan: with as much reuse as before, or a step more or less of it where that wins what a load must
        win. Less of it not within `_REUSE_DWELL_S` of the last change: load that came back finds it there."""
        best = self._planned(look, before, before)
        if not self.settings.plans_reuse:
            return best
        may_less = look.context.now_s - look.demand.reused_at_s >= _REUSE_DWELL_S
        for level in steps_away(before, may_less):
            enough = best.solution.objective + _WON_BY_REUSE * best.problem.wanted
            routes, problem = self._weighed(look, before, level)
            if problem.bound > enough and (found := self._solved(look, level, routes, problem)).is_above(enough):
                best = found
        return best

    def _planned(self, look: _Look, before: CachePlan, level: CachePlan) -> _Planned:
        return self._solved(look, level, *self._weighed(look, before, level))

    def _weighed(
        self, look: _Look, before: CachePlan, level: CachePlan
    ) -> tuple[dict[str, PlannedRoute], JointProblem]:
        """The routes by name, and the problem, if hits use as much of the tables as a level says."""
        settings = settings_under(self.settings, level)
        demand = as_reused(known_under(look.demand, before, level), level)
        kept = quality_kept(level.bias, settings.bias_loss)
        routes = routes_of(look.context, settings, look.components, demand, kept)
        planned = as_planned_for(look.context, settings, demand)
        problem = self._problem(look.context, look.kinds, look.components, routes, planned)
        late = backlog_routes(look.backlogs)
        return {one.route.name: one for one in (*routes, *late)}, with_backlogs(problem, look.backlogs)

    def _solved(
        self, look: _Look, level: CachePlan, routes: dict[str, PlannedRoute], problem: JointProblem
    ) -> _Planned:
        solution, is_enough = self._solve(problem, look.may_load)
        patient = replace(problem, horizon_s=_LOADS_OF_PATIENCE * _longest_load_s(problem.components))
        if solution.served_share < _MANY_SERVED and patient.horizon_s > problem.horizon_s:
            # Within the horizon no load of theirs pays, and so they would be refused for as long as they come.
            problem = patient
            solution, is_enough = self._solve(problem, look.may_load)
        return _Planned(level, routes, problem, solution, is_enough)

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
        # An SLO that no picture can keep is no reason to paint none: deadlines are the clients' own.
        return replace(problem, slo_s=max(problem.slo_s, least_s(problem, NOISE)))

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
        if solution is None:
            raise FailedPrecondition("NO_PLAN", f"no plan was found in {self.most_relaxations} steps of the search")
        return solution, False

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
