"""Plan by the allocation problem: all routes to an image together, on every kind of device."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import Plan, Replica
from pentimento.domain.reasons import Reason
from pentimento.policies.plan.entry import NOISE
from pentimento.policies.plan.inputs import Decision, PlanInput
from pentimento.policies.plan.joint.forecast import ROOMS, DemandForecast, as_planned_for, observed_demand
from pentimento.policies.plan.joint.layout import lay_out, pool_names
from pentimento.policies.plan.joint.problem import (
    AllocationProblem,
    AllocationSolution,
    Component,
    PlannedRoute,
    least_s,
    single_plans,
)
from pentimento.policies.plan.joint.program import AllocationProgram
from pentimento.policies.plan.joint.quality import LearntQuality
from pentimento.policies.plan.joint.routes import (
    MAY_WAIT,
    backlogs,
    beside_others,
    components_of,
    kind_of,
    kinds_of,
    routes_of,
    with_backlogs,
)
from pentimento.policies.plan.placement import with_pools_of
from pentimento.policies.plan.settings import ServingSettings, check_informative

# Least gain in quality a request of a plan with loads over one without, for each second of the longest load (a tenth of
# it in the share served); at least `_WON_FREELY`.
_WON_A_SECOND = 0.0005
_WON_FREELY = 0.001
_SERVED = 0.99
_LOADS_IN_DWELL = 6.0
# Below this share served, a load may take longer than the horizon: its costs count within twice its time.
_MANY_SERVED, _LOADS_OF_PATIENCE = 0.5, 2.0
# Requests a second of every start that are always planned for, so that each start has a route.
_FLOOR_PER_S = 1e-3
_GAP, _MOST_RELAXATIONS = 1e-6, 300


@dataclass(frozen=True)
class JointMemory:
    """Hold the policy's estimates of the demand, and of the quality of light images and hits."""

    demand: DemandForecast
    quality: LearntQuality


@dataclass(frozen=True)
class JointPolicy:
    """Turn profiles, f(t) and demand into the allocation problem, and its solution into a plan.

    - Loads: a load costs the device's seconds, by the tier that has the model, out of `horizon_s`, or out of twice the
      longest load if that is longer and fewer than half are served without it. Devices change their models at most once
      in six of the longest loads, or in `dwell_s` if that is shorter, unless the demand cannot be carried otherwise.
    - Demand is forecast over the longest load. The quickest model keeps room for jumps of load if that costs little
      quality; without such a model the settings' `overprovision` applies. A backlog is served within `horizon_s` if
      devices can, before quality counts.
    - Admission: demand that cannot be carried in time is not admitted, the worst routes first; nothing is rejected
      before the first request. If no image from noise can keep the SLO, the seconds of the quickest way replace it.
    - Quality of light images and hits is estimated from comparisons with the heavy model's images, with the settings'
      as the prior (`quality`). `settings.run_price` is the quality that a whole run of the heavy model must add.
    - The search ends a share `_GAP` below the best, or after `_MOST_RELAXATIONS`, never by a clock. If it ends without
      a proof, the plans of single papers are searched too, and the best plan counts.

    `notes` of the plan name models without a profile, a replaced SLO, and estimated qualities.
    """

    settings: ServingSettings
    horizon_s: float = 60.0
    dwell_s: float = 30.0

    def __call__(self, context: PlanInput) -> Decision:
        replicas = [view.replica for view in context.replicas]
        check_informative([self.settings.discriminator] if self.settings.light else [], replicas)
        settings = self.settings.measured_by(replicas)
        return replace(self, settings=settings)._decide(context)

    def _decide(self, context: PlanInput) -> Decision:
        memory, kinds = self.remember(context), kinds_of(context)
        if not kinds:
            return Decision(memory=memory)
        demand, learnt = memory.demand, memory.quality
        components, notes = components_of(context, self.settings, kinds)
        if not components:
            raise FailedPrecondition(Reason.PROFILE_MISSING, "; ".join(notes) or "no worker can hold any of the models")
        may_load = context.now_s - demand.moved_at_s >= self._dwell_s(components)
        settings = learnt.applied(self.settings)
        routes, planned = routes_of(context, settings, components, demand), as_planned_for(context, settings, demand)
        problem = self._problem(context, kinds, components, routes, planned)
        problem = with_backlogs(problem, backlogs(context, components, settings.slo_s))
        problem, solution, is_enough = self._solve_patiently(problem, may_load)
        plan = lay_out(context, kinds, problem, beside_others(solution), may_load=may_load and is_enough)
        demand = replace(demand, moved_at_s=self._moved_at_s(context, plan, demand))
        if not any(seen.arrivals_per_s > 0.0 for seen in context.demand):
            # The share of hits is unknown before the first request, and so is what can be carried.
            plan = replace(plan, admission_rate=1.0)
        if (kept_s := problem.slo_s) > self.settings.slo_s:
            notes.append(f"no image can be generated within {self.settings.slo_s:g} s; {kept_s:.3g} s are planned for")
        notes += learnt.notes(self.settings)
        models = (model for model in (self.settings.heavy, self.settings.light, *self.settings.small_models) if model)
        plan = replace(with_pools_of(plan, models, pool_names), notes=tuple(notes))
        cascade = ">".join((self.settings.light, self.settings.heavy))
        deferrals = (demand.curve.reported(cascade),) if self.settings.light else ()
        return Decision(plan, JointMemory(demand, learnt), deferrals=deferrals)

    def remember(self, context: PlanInput) -> JointMemory:
        """Return the memory after this planning round."""
        before, known, learnt = context.last.memory, None, LearntQuality.empty(self.settings)
        if isinstance(before, JointMemory):
            known = before.demand
            learnt = before.quality if before.quality.models == learnt.models else learnt
        demand = observed_demand(context, self.settings, known)
        return JointMemory(demand, learnt.seen(context, self.settings, demand.curve.followed))

    def _solve_patiently(
        self, problem: AllocationProblem, may_load: bool
    ) -> tuple[AllocationProblem, AllocationSolution, bool]:
        """Return the problem, its best solution, and whether it serves all requests in the best way: by a longer
        horizon if the usual one serves few requests."""
        solution, is_enough = self._solve(problem, may_load)
        patient = replace(problem, horizon_s=_LOADS_OF_PATIENCE * _longest_load_s(problem.components))
        if solution.served_share < _MANY_SERVED and patient.horizon_s > problem.horizon_s:
            # No load for the other requests pays within the horizon, so they would be rejected as long as they arrive.
            problem = patient
            solution, is_enough = self._solve(problem, may_load)
        return problem, solution, is_enough

    def _problem(
        self,
        context: PlanInput,
        kinds: Mapping[str, Sequence[Replica]],
        components: Sequence[Component],
        routes: Sequence[PlannedRoute],
        demand: DemandForecast,
    ) -> AllocationProblem:
        ahead_s = _longest_load_s(components)
        # The quickest model keeps room for random load, unless that is the heavy one.
        has_room = any(route.start in ROOMS for route in routes)
        beyond = 1.0 if has_room else self.settings.overprovision
        wanted = {start: rate * beyond for start, rate in demand.by_start(ahead_s).items()}
        problem = AllocationProblem(
            {start: max(rate, _FLOOR_PER_S) for start, rate in wanted.items()},
            {kind: len(workers) for kind, workers in kinds.items()},
            components,
            list(routes),
            self.settings.slo_s,
            _held(context),
            self.horizon_s,
            rooms=ROOMS,
            second_price=self._second_price(components),
        )
        # Images are generated even if none can keep the SLO: deadlines belong to the clients.
        quickest_s, planned = least_s(problem, NOISE), sum(wanted.values())
        # Requests that may wait while devices load another model need no room now.
        borne = MAY_WAIT * max(problem.slo_s - quickest_s, 0.0) / (self.horizon_s + ahead_s) * planned
        surges = demand.surges(planned, borne)
        return replace(problem, slo_s=max(problem.slo_s, quickest_s), demand={**problem.demand, **surges})

    def _second_price(self, components: Sequence[Component]) -> float:
        """Return the quality that a second of a device must add to a request: the price of a heavy run by its
        seconds."""
        heavy = next((one for one in components if one.name == self.settings.heavy), components[0])
        speeds = (cost.throughput for costs in heavy.costs.values() for cost in costs)
        return self.settings.run_price * max(speeds, default=0.0)

    def _dwell_s(self, components: Sequence[Component]) -> float:
        """Return the seconds between two changes of models: devices load for a sixth of their time at most, and models
        that load in no time may change in every planning round."""
        return min(self.dwell_s, _LOADS_IN_DWELL * _longest_load_s(components))

    def _solve(self, problem: AllocationProblem, may_load: bool) -> tuple[AllocationSolution, bool]:
        """Return the solution, and whether it serves all requests in the best way. Devices keep their models while a
        load gains too little, or within the dwell time while all requests are served."""
        program = AllocationProgram(problem)
        stays = program.search(_GAP, _MOST_RELAXATIONS, may_load=False)
        longest_s = _longest_load_s(problem.components)
        won = max(_WON_FREELY, _WON_A_SECOND * longest_s) * problem.wanted
        if stays is not None and stays.objective >= problem.bound - won:
            return stays, True
        if stays is not None and stays.served_share > _SERVED and not may_load:
            return stays, False
        above = stays.objective + won if stays is not None else -math.inf
        solution = program.search(_GAP, _MOST_RELAXATIONS, may_load=True, above=above) or stays
        if solution is None or not solution.is_optimal:
            solution = self._best_single(problem, solution)
        if solution is None:
            raise FailedPrecondition("NO_PLAN", f"no plan was found in {_MOST_RELAXATIONS} steps of the search")
        return solution, False

    def _best_single(self, problem: AllocationProblem, found: AllocationSolution | None) -> AllocationSolution | None:
        """Return the best plan of an unfinished search and of single papers."""
        singles = single_plans(problem, self.settings.heavy, self.settings.light).values()
        searches = (AllocationProgram(one).search(_GAP, _MOST_RELAXATIONS, may_load=True) for one in singles)
        others = [other for other in searches if other is not None]
        return max([*([found] if found is not None else []), *others], key=lambda one: one.objective, default=None)

    def _moved_at_s(self, context: PlanInput, plan: Plan, demand: DemandForecast) -> float:
        before = {assignment.worker_id: assignment.model for assignment in context.last.plan.assignments}
        moved = any(before.get(one.worker_id, one.model) != one.model for one in plan.assignments)
        return context.now_s if moved else demand.moved_at_s


def _longest_load_s(components: Sequence[Component]) -> float:
    """Return the seconds of the slowest load."""
    return max(component.load_s for component in components)


def _held(context: PlanInput) -> dict[tuple[str, str], int]:
    """Return units by (kind, model): models that workers hold, or are loading by the plan in force."""
    planned, kinds = context.planned_models(), {one.instance_id: kind_of(one) for one in context.workers()}
    return dict(Counter((kinds[name], model) for name, model in planned.items()))
