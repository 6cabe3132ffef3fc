"""DiffServe's allocator (section 3.3 of the paper): every request goes to the light model first, and is deferred by the
plan's threshold."""

from collections.abc import Sequence
from dataclasses import dataclass

from pentimento.domain.fleet import CascadePlan, PoolPlan, StagePlan, StartThreshold
from pentimento.policies.allocation import AllocationContext, AllocationDecision, ModelDemand
from pentimento.policies.serving.cascade_problem import (
    CascadeProblem,
    CascadeSolution,
    QueueDelay,
    grid,
    solve,
)
from pentimento.policies.serving.costs import batch_costs, scoring_s
from pentimento.policies.serving.demand import averaged_demand, demand_of, observed_bend
from pentimento.policies.serving.entry import EVERY_START, STARTS, every_start
from pentimento.policies.serving.handed_over import scored_stage
from pentimento.policies.serving.one_left import one_left
from pentimento.policies.serving.placement import place
from pentimento.policies.serving.settings import ServingSettings


@dataclass(frozen=True)
class _CascadeMemory:
    """What the allocator carries from one decision to the next. `curve`: the mark of the one that is bent; 0 where
    nobody has said."""

    demand: float = 0.0
    bend: float = 1.0
    at_s: float = 0.0
    curve: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> "_CascadeMemory":
        return cls(*values[:4]) if values else cls()

    def values(self) -> tuple[float, ...]:
        return (self.demand, self.bend, self.at_s, self.curve)


@dataclass(frozen=True)
class CascadeAllocator:
    """Solve DiffServe's allocation problem anew at every call. Demand is averaged with `demand_weight`, times
    `overprovision`; f(t) starts as profiled and is bent towards the deferred share that is observed."""

    settings: ServingSettings

    def __call__(self, context: AllocationContext) -> AllocationDecision:
        settings = self.settings
        if (alone := one_left(context, settings, [settings.light])) is not None:
            return alone
        light, heavy = demand_of(context, settings.light), demand_of(context, settings.heavy)
        memory = self._remember(context, light, heavy)
        problem = CascadeProblem(
            demand=memory.demand * settings.overprovision,
            device_count=context.holder_count(settings.light, settings.heavy),
            slo_s=settings.slo_s,
            light=batch_costs(context, settings.light, settings.batch_sizes),
            heavy=batch_costs(context, settings.heavy, settings.batch_sizes, settings.reuse_share),
            deferral=settings.deferral.bent(memory.bend),
            thresholds=grid(settings.threshold_count),
            light_queue_s=self.queue_delay(light),
            heavy_queue_s=self.queue_delay(heavy),
            discriminator_s=scoring_s(context, settings.discriminator_s, [settings.discriminator]),
        )
        return as_decision(context, settings, self.solution(context, problem), memory.values())

    def solution(self, context: AllocationContext, problem: CascadeProblem) -> CascadeSolution:
        """Return the solution that is planned."""
        return solve(problem)

    def _remember(self, context: AllocationContext, light: ModelDemand, heavy: ModelDemand) -> _CascadeMemory:
        before = _CascadeMemory.of(context.last.memory)
        known = before.demand if context.last.memory else self.settings.expected_per_s
        elapsed_s = context.now_s - before.at_s if context.last.memory else 0.0
        demand = averaged_demand(light.arrivals_per_s, known, self.settings.demand_weight, elapsed_s)
        curve = self.settings.deferral
        # What was seen of another curve says nothing of one that was registered since.
        bend = observed_bend(context, curve, light, before.bend) if before.curve in (0.0, curve.mark) else 1.0
        return _CascadeMemory(demand, bend, at_s=context.now_s, curve=curve.mark)

    def queue_delay(self, demand: ModelDemand) -> QueueDelay:
        """Return q(b) of a pool."""
        # Little's law, W = L / lambda, holds of averages; a pool that hears from nobody drains within the SLO or is
        # late anyway.
        length = demand.queue_length if demand.mean_queue_length is None else demand.mean_queue_length
        wait_s = length / max(demand.arrivals_per_s, 1.0 / self.settings.slo_s)
        return lambda cost: wait_s


def as_decision(
    context: AllocationContext, settings: ServingSettings, solution: CascadeSolution, memory: tuple[float, ...]
) -> AllocationDecision:
    """Turn a solution into assignments and pools: everything enters the light pool, which defers by the threshold."""
    counts = {settings.light: solution.light_count, settings.heavy: solution.heavy_count}
    batches = {settings.light: solution.light_batch, settings.heavy: solution.heavy_batch}
    assignments = place(context, counts, batches)
    workers = {model: tuple(a.worker_id for a in assignments if a.model == model) for model in counts}
    threshold = solution.threshold if workers[settings.heavy] else 0.0
    cascades = (_cascade(settings, threshold),) if threshold > 0.0 else ()
    routes = every_start(cascades[0].cascade) if cascades else EVERY_START
    pools = (
        PoolPlan(settings.light, settings.light, workers[settings.light], routes),
        PoolPlan(settings.heavy, settings.heavy, workers[settings.heavy]),
    )
    return AllocationDecision(assignments, pools, solution.admission_rate, memory, cascades)


def _cascade(settings: ServingSettings, threshold: float) -> CascadePlan:
    """Every light picture is scored, whatever it started from (DiffServe has no other start than noise)."""
    thresholds = tuple(StartThreshold(start, threshold) for start in STARTS)
    stages = (scored_stage(settings.light, thresholds, settings.handover), StagePlan(settings.heavy))
    return CascadePlan(f"{settings.light}>{settings.heavy}", stages)
