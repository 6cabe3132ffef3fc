"""Plan a cascade as DiffServe does (section 3.3 of the paper): average the demand, then solve the problem again.

DiffServe's own cascade has two models; a registered one may have more.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from pentimento.domain.fleet import CascadePlan, Plan, PoolPlan, StagePlan, StartThreshold
from pentimento.domain.models import CascadeVariant, Handover
from pentimento.policies.plan.cascade_problem import CascadeProblem, CascadeSolution, solve_cascade
from pentimento.policies.plan.costs import BatchCost, batch_costs, scoring_s
from pentimento.policies.plan.demand import averaged_demand, demand_of
from pentimento.policies.plan.entry import EVERY_START, STARTS, every_start
from pentimento.policies.plan.followed_curve import FollowedCurve
from pentimento.policies.plan.inputs import UNNUMBERED, Decision, ModelDemand, PlanInput
from pentimento.policies.plan.placement import OneModel, place, scored_stage, with_pools_of
from pentimento.policies.plan.settings import DeferralCurve, ServingSettings, check_informative, measured_deferral


@dataclass(frozen=True)
class CascadeMemory:
    """Hold the policy's estimates at `at_s`: the averaged demand, and f(t) of each hand-over."""

    demand: float
    at_s: float
    curves: tuple[FollowedCurve, ...]


@dataclass(frozen=True)
class CascadePolicy:
    """Plan the models of a cascade, light first.

    `settings` give the SLO, the batch sizes and the rules for demand: averaged with `demand_weight`, multiplied by
    `overprovision`. Models, discriminators and deferral curves are the cascade's. Each curve begins as measured and
    follows the observed confidences. If no worker can hold one of the models, the models before it are planned,
    or, without any, the models after it.
    """

    settings: ServingSettings
    cascade: CascadeVariant

    def __call__(self, context: PlanInput) -> Decision:
        return replace(self, cascade=with_measured(self.cascade, context))._decide(context)

    def _decide(self, context: PlanInput) -> Decision:
        stages = self._able(context)
        if len(stages) < len(self.cascade.models):
            return self._of_a_part(context, stages)
        memory = self.remember(context)
        solution = self.solution(context, self._problem(context, memory))
        pairs = zip(pairwise(self.cascade.models), memory.curves, strict=True)
        deferrals = tuple(curve.reported(">".join(pair)) for pair, curve in pairs)
        return Decision(self.plan(context, solution), memory, deferrals=deferrals)

    def solution(self, context: PlanInput, problem: CascadeProblem) -> CascadeSolution:
        """Return the solution to plan by."""
        return solve_cascade(problem)

    def wait_s(self, demand: ModelDemand, cost: BatchCost) -> float:
        """Return q(b), the seconds that a request waits before its batch, by Little's law: W = L / lambda."""
        # The law holds for averages. A pool without arrivals drains within the SLO, or is late anyway.
        length = demand.queue_length if demand.mean_queue_length is None else demand.mean_queue_length
        least = 1.0 / self.settings.slo_s if math.isfinite(self.settings.slo_s) else 1e-3
        return length / max(demand.arrivals_per_s, least)

    def stage(self, context: PlanInput, index: int) -> tuple[BatchCost, ...]:
        """Return the costs of a stage with their waits. A start from the previous stage's image takes fewer steps."""
        model, saved_share = self.cascade.models[index], self.cascade.handovers[index - 1].reuse_share if index else 0.0
        demand = demand_of(context, model)
        costs = batch_costs(context, model, self.settings.batch_sizes, saved_share)
        return tuple(replace(cost, wait_s=self.wait_s(demand, cost)) for cost in costs)

    def remember(self, context: PlanInput) -> CascadeMemory:
        """Return the memory after this planning round."""
        before, models = self._before(context), self.cascade.models
        newest, elapsed_s = demand_of(context, models[0]).arrivals_per_s, context.now_s - before.at_s
        demand = averaged_demand(newest, before.demand, self.settings.demand_weight, elapsed_s)
        # Observations of one curve do not apply to a curve that was registered later.
        curves = tuple(
            known.after(demand_of(context, model).confidences) if known.measured == curve.measured else curve
            for model, curve, known in zip(models[:-1], self._measured(), before.curves, strict=True)
        )
        return CascadeMemory(demand, context.now_s, curves)

    def plan(self, context: PlanInput, solution: CascadeSolution) -> Plan:
        """Return the plan of a solution: every request enters the first pool, and thresholds defer it."""
        models = self.cascade.models
        counts = dict(zip(models, solution.counts, strict=True))
        assignments = place(context, counts, dict(zip(models, solution.batch_sizes, strict=True)))
        workers = {model: tuple(each.worker_id for each in assignments if each.model == model) for model in models}
        cascade = self._planned(workers, solution)
        cascades = (cascade,) if len(cascade.stages) > 1 else ()
        routes = every_start(cascade.cascade) if cascades else EVERY_START
        pools = (
            PoolPlan(models[0], models[0], workers[models[0]], routes),
            *(PoolPlan(model, model, workers[model]) for model in models[1:]),
        )
        return Plan(UNNUMBERED, assignments, pools, solution.admission_rate, cascades=cascades)

    def _planned(self, workers: dict[str, tuple[str, ...]], solution: CascadeSolution) -> CascadePlan:
        """Return the cascade up to the last stage that has workers and receives requests."""
        models, stages = self.cascade.models, list[StagePlan]()
        behind = zip(models[1:], solution.reached[1:], solution.thresholds, self.cascade.handovers, strict=True)
        for model, (following, share, threshold, handover) in zip(models[:-1], behind, strict=True):
            if share <= 0.0 or not workers[following]:
                return CascadePlan(self.cascade.name, (*stages, StagePlan(model)))
            thresholds = tuple(StartThreshold(start, threshold) for start in STARTS)
            stages.append(scored_stage(model, thresholds, handover))
        return CascadePlan(self.cascade.name, (*stages, StagePlan(models[-1])))

    def _problem(self, context: PlanInput, memory: CascadeMemory) -> CascadeProblem:
        settings = self.settings
        discriminators = (each.discriminator or self.cascade.name for each in self.cascade.handovers)
        return CascadeProblem(
            memory.demand * settings.overprovision,
            context.holder_count(*self.cascade.models),
            settings.slo_s,
            tuple(self.stage(context, index) for index in range(len(self.cascade.models))),
            tuple(curve.followed for curve in memory.curves),
            scoring_s(context, settings.discriminator_s, discriminators),
        )

    def _able(self, context: PlanInput) -> range:
        """Return the first run of stages with models that a worker can hold; all stages if there is none."""
        able, models = context.able_models(), self.cascade.models
        first = next((index for index, model in enumerate(models) if model in able), None)
        if first is None:
            return range(len(models))
        return range(first, next((i for i in range(first, len(models)) if models[i] not in able), len(models)))

    def _of_a_part(self, context: PlanInput, stages: range) -> Decision:
        """Plan only `stages`. The memory of the other stages stays, and so do their pools, for waiting requests."""
        models, handovers = self.cascade.models[stages.start : stages.stop], slice(stages.start, stages.stop - 1)
        if len(models) == 1:
            alone = OneModel(models[0], self.settings.slo_s, self.settings.batch_sizes)(context)
            return Decision(with_pools_of(alone.plan, self.cascade.models), context.last.memory)
        before = self._before(context)
        part = replace(self, cascade=CascadeVariant(models, self.cascade.handovers[handovers]))
        own = replace(before, curves=before.curves[handovers])
        context = replace(context, last=Decision(context.last.plan, own))
        planned, memory = part(context), part.remember(context)
        curves = (*before.curves[: stages.start], *memory.curves, *before.curves[stages.stop - 1 :])
        plan = with_pools_of(planned.plan, self.cascade.models)
        return replace(planned, plan=plan, memory=replace(memory, curves=curves))

    def _before(self, context: PlanInput) -> CascadeMemory:
        last = context.last.memory
        if isinstance(last, CascadeMemory) and len(last.curves) == len(self.cascade.handovers):
            return last
        return CascadeMemory(self.settings.expected_per_s, context.now_s, self._measured())

    def _measured(self) -> tuple[FollowedCurve, ...]:
        """Return f(t) of each hand-over as measured."""
        return tuple(FollowedCurve(DeferralCurve(one.thresholds, one.shares)) for one in self.cascade.handovers)


def with_measured(cascade: CascadeVariant, context: PlanInput) -> CascadeVariant:
    """Return the cascade with f(t) of the fleet's discriminators at unregistered hand-overs, unless the operator gave
    a curve. Raises FailedPrecondition DISCRIMINATOR_UNINFORMATIVE."""
    replicas, straight = [view.replica for view in context.replicas], DeferralCurve()

    def measured(handover: Handover, pair: tuple[str, str]) -> Handover:
        is_stated = handover.discriminator or DeferralCurve(handover.thresholds, handover.shares) != straight
        found = None if is_stated else measured_deferral(">".join(pair), replicas)
        return replace(handover, thresholds=found.thresholds, shares=found.shares) if found is not None else handover

    pairs = list(zip(cascade.handovers, pairwise(cascade.models), strict=True))
    check_informative((handover.discriminator or ">".join(pair) for handover, pair in pairs), replicas)
    return replace(cascade, handovers=tuple(measured(handover, pair) for handover, pair in pairs))


def diffserve_cascade(settings: ServingSettings) -> CascadeVariant:
    """Return the cascade of the settings' light and heavy model. Without a registration it has the settings' curve, and
    any discriminator of the two models scores it."""
    curve = settings.deferral
    handover = settings.handover or Handover("", "", curve.thresholds, curve.shares)
    return CascadeVariant((settings.light, settings.heavy), (handover,))
