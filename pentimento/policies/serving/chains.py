"""Plans a cascade of two models or more as DiffServe plans two: demand averaged, then the problem solved anew."""

import math
from dataclasses import dataclass, replace

from pentimento.domain.fleet import CascadePlan, PoolPlan, StagePlan, StartThreshold
from pentimento.domain.models import CascadeVariant
from pentimento.policies.allocation import AllocationContext, AllocationDecision
from pentimento.policies.serving.chain_problem import ChainProblem, ChainSolution, ChainStage, solve_chain
from pentimento.policies.serving.costs import batch_costs, scoring_s
from pentimento.policies.serving.demand import averaged_demand, demand_of, observed_bend
from pentimento.policies.serving.entry import EVERY_START, STARTS, every_start
from pentimento.policies.serving.handed_over import scored_stage
from pentimento.policies.serving.one_left import with_pools_of
from pentimento.policies.serving.placement import place
from pentimento.policies.serving.policy import ServingPolicy
from pentimento.policies.serving.settings import DeferralCurve, ServingSettings
from pentimento.policies.serving.uniform import OneModel

NAME = "cascade"


def cascade_chain(settings: ServingSettings, cascade: CascadeVariant) -> ServingPolicy:
    """Build the policy that plans a registered cascade."""
    return ServingPolicy(NAME, ChainAllocator(settings, cascade))


@dataclass(frozen=True)
class ChainAllocator:
    """`settings` give the SLO, the batch sizes and how demand is averaged and over-provisioned; models, discriminators
    and deferral curves are the cascade's. Each curve is bent towards the share that is observed to be sent on there.
    Where no worker can hold one of the models, those before it are planned, or behind it where there are none."""

    settings: ServingSettings
    cascade: CascadeVariant

    def __call__(self, context: AllocationContext) -> AllocationDecision:
        stages = self._able(context)
        if len(stages) < len(self.cascade.models):
            return self._of_a_part(context, stages)
        demand, bends = self._demand(context), self._bends(context)
        curves = (DeferralCurve(each.thresholds, each.shares) for each in self.cascade.handovers)
        problem = ChainProblem(
            demand * self.settings.overprovision,
            context.holder_count(*self.cascade.models),
            self.settings.slo_s,
            tuple(self._stage(context, index) for index in range(len(self.cascade.models))),
            tuple(curve.bent(bend) for curve, bend in zip(curves, bends, strict=True)),
            scoring_s(context, self.settings.discriminator_s, (each.discriminator for each in self.cascade.handovers)),
        )
        return self._decision(context, solve_chain(problem), (demand, context.now_s, *bends))

    def _able(self, context: AllocationContext) -> range:
        """The first stages in a row whose models any worker can hold; all where none can be held."""
        able, models = context.able_models(), self.cascade.models
        first = next((index for index, model in enumerate(models) if model in able), None)
        if first is None:
            return range(len(models))
        return range(first, next((i for i in range(first, len(models)) if models[i] not in able), len(models)))

    def _of_a_part(self, context: AllocationContext, stages: range) -> AllocationDecision:
        """What is remembered of the other stages stays, and so do their pools, for those who wait there."""
        models, handovers = self.cascade.models[stages.start : stages.stop], slice(stages.start, stages.stop - 1)
        memory = context.last.memory
        if len(models) == 1:
            decision = OneModel(models[0], self.settings.slo_s, self.settings.batch_sizes)(context)
        else:
            bends = list(memory[2:] or (1.0,) * len(self.cascade.handovers))
            own = (*memory[:2], *bends[handovers]) if memory else ()
            part = ChainAllocator(self.settings, CascadeVariant(models, self.cascade.handovers[handovers]))
            decision = part(replace(context, last=replace(context.last, memory=own)))
            bends[handovers] = decision.memory[2:]
            memory = (*decision.memory[:2], *bends)
        return replace(with_pools_of(decision, self.cascade.models), memory=memory)

    def _demand(self, context: AllocationContext) -> float:
        newest = demand_of(context, self.cascade.models[0]).arrivals_per_s
        known, at_s = context.last.memory[:2] or (self.settings.expected_per_s, context.now_s)
        return averaged_demand(newest, known, self.settings.demand_weight, context.now_s - at_s)

    def _bends(self, context: AllocationContext) -> tuple[float, ...]:
        """The exponent of each hand-over's curve."""
        handovers = self.cascade.handovers
        before = context.last.memory[2:] or (1.0,) * len(handovers)
        return tuple(
            observed_bend(context, DeferralCurve(each.thresholds, each.shares), demand_of(context, model), bend)
            for model, each, bend in zip(self.cascade.models[:-1], handovers, before, strict=True)
        )

    def _stage(self, context: AllocationContext, index: int) -> ChainStage:
        """Little's law, W = L / lambda, as for two models. Whoever starts from the picture before takes fewer steps."""
        model, saved_share = self.cascade.models[index], self.cascade.handovers[index - 1].reuse_share if index else 0.0
        asked = demand_of(context, model)
        length = asked.queue_length if asked.mean_queue_length is None else asked.mean_queue_length
        least = 1.0 / self.settings.slo_s if math.isfinite(self.settings.slo_s) else 1e-3
        wait_s = length / max(asked.arrivals_per_s, least)
        return ChainStage(batch_costs(context, model, self.settings.batch_sizes, saved_share), wait_s)

    def _decision(
        self, context: AllocationContext, solution: ChainSolution, memory: tuple[float, ...]
    ) -> AllocationDecision:
        models = self.cascade.models
        assignments = place(
            context,
            dict(zip(models, solution.counts, strict=True)),
            dict(zip(models, solution.batch_sizes, strict=True)),
        )
        workers = {model: tuple(each.worker_id for each in assignments if each.model == model) for model in models}
        cascade = self._planned(workers, solution)
        routes = every_start(cascade.cascade) if len(cascade.stages) > 1 else EVERY_START
        pools = (
            PoolPlan(models[0], models[0], workers[models[0]], routes),
            *(PoolPlan(model, model, workers[model]) for model in models[1:]),
        )
        cascades = (cascade,) if len(cascade.stages) > 1 else ()
        return AllocationDecision(assignments, pools, solution.admission_rate, memory, cascades)

    def _planned(self, workers: dict[str, tuple[str, ...]], solution: ChainSolution) -> CascadePlan:
        """As far as there are workers: nothing is sent on to nobody."""
        stages: list[StagePlan] = []
        for index, model in enumerate(self.cascade.models):
            goes_on = index < len(solution.thresholds) and workers[self.cascade.models[index + 1]]
            if not goes_on:
                stages.append(StagePlan(model))
                break
            thresholds = tuple(StartThreshold(start, solution.thresholds[index]) for start in STARTS)
            stages.append(scored_stage(model, thresholds, self.cascade.handovers[index]))
        return CascadePlan(self.cascade.name, tuple(stages))
