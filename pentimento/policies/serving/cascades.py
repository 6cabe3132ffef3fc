"""DiffServe (section 3.3 of the paper) and its ablations and relatives: static cascade, static threshold, AIMD
batching, no queueing model.

All of them send every request to the light model first and defer by the plan's threshold.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pentimento.domain.fleet import CascadePlan, PoolPlan, StagePlan, StartThreshold
from pentimento.policies.allocation import AllocationContext, AllocationDecision, ModelDemand
from pentimento.policies.serving.cascade_problem import (
    CascadeProblem,
    CascadeSolution,
    QueueDelay,
    grid,
    solve,
)
from pentimento.policies.serving.costs import BatchCost, batch_costs, scoring_s
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
    light_batch: float = 1.0
    heavy_batch: float = 1.0
    at_s: float = 0.0
    curve: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> "_CascadeMemory":
        return cls(*values) if values else cls()

    def values(self) -> tuple[float, ...]:
        return (self.demand, self.bend, self.light_batch, self.heavy_batch, self.at_s, self.curve)


@dataclass(frozen=True)
class CascadeAllocator:
    """DiffServe's allocator and, by its flags, those that the paper compares it with. Solves DiffServe's allocation
    problem anew at every call. Demand is averaged with `demand_weight`, times `overprovision`; f(t) starts as profiled
    and is bent towards the deferred share that is observed.

    `fixed_threshold` does not move t ("static threshold"). `queueing_model` off replaces Little's law by q(b) = 2 e(b)
    ("no queueing model"). `relaxed`: see CascadeProblem. `solver`: by enumeration, or by a MILP (`cascade_milp`).
    `aimd` takes batch sizes from additive increase and multiplicative decrease on SLO violations in place of the
    solver, which then plans for throughput alone: what batches cost in latency is found out by violations.
    """

    settings: ServingSettings
    fixed_threshold: float | None = None
    queueing_model: bool = True
    aimd: bool = False
    relaxed: bool = False
    solver: Callable[[CascadeProblem], CascadeSolution] = solve

    def __call__(self, context: AllocationContext) -> AllocationDecision:
        settings = self.settings
        if (alone := one_left(context, settings, [settings.light])) is not None:
            return alone
        light, heavy = demand_of(context, settings.light), demand_of(context, settings.heavy)
        memory = self._remember(context, light, heavy)
        problem = CascadeProblem(
            demand=memory.demand * settings.overprovision,
            device_count=context.holder_count(settings.light, settings.heavy),
            slo_s=math.inf if self.aimd else settings.slo_s,
            light=batch_costs(context, settings.light, self._sizes(memory.light_batch)),
            heavy=batch_costs(context, settings.heavy, self._sizes(memory.heavy_batch), settings.reuse_share),
            deferral=settings.deferral.bent(memory.bend),
            thresholds=self._thresholds(),
            light_queue_s=self._queue_delay(light),
            heavy_queue_s=self._queue_delay(heavy),
            discriminator_s=scoring_s(context, settings.discriminator_s, [settings.discriminator]),
            relaxed=self.relaxed,
        )
        return as_decision(context, settings, self.solver(problem), memory.values())

    def _remember(self, context: AllocationContext, light: ModelDemand, heavy: ModelDemand) -> _CascadeMemory:
        before = _CascadeMemory.of(context.last.memory)
        known = before.demand if context.last.memory else self.settings.expected_per_s
        elapsed_s = context.now_s - before.at_s if context.last.memory else 0.0
        demand = averaged_demand(light.arrivals_per_s, known, self.settings.demand_weight, elapsed_s)
        curve = self.settings.deferral
        # What was seen of another curve says nothing of one that was registered since.
        bend = observed_bend(context, curve, light, before.bend) if before.curve in (0.0, curve.mark) else 1.0
        seen = _CascadeMemory(demand, bend, at_s=context.now_s, curve=curve.mark)
        return self._with_batches(context, before, light, heavy, seen) if self.aimd else seen

    def _with_batches(
        self,
        context: AllocationContext,
        before: _CascadeMemory,
        light: ModelDemand,
        heavy: ModelDemand,
        seen: _CascadeMemory,
    ) -> _CascadeMemory:
        """None beyond what was measured: nobody would say what it costs."""
        limit = max(self.settings.batch_sizes)
        batches = next_batches((before.light_batch, before.heavy_batch), light, heavy, limit)
        models = self.settings.light, self.settings.heavy
        measured = (float(batch_costs(context, model)[-1].batch_size) for model in models)
        light_batch, heavy_batch = map(min, batches, measured)
        return replace(seen, light_batch=light_batch, heavy_batch=heavy_batch)

    def _sizes(self, aimd_batch: float) -> tuple[int, ...]:
        return (int(aimd_batch),) if self.aimd else self.settings.batch_sizes

    def _thresholds(self) -> tuple[float, ...]:
        if self.fixed_threshold is None:
            return grid(self.settings.threshold_count)
        return (self.fixed_threshold,)

    def _queue_delay(self, demand: ModelDemand) -> QueueDelay:
        if not self.queueing_model:
            return _twice_the_execution
        # Little's law, W = L / lambda, holds of averages; a pool that hears from nobody drains within the SLO or is
        # late anyway.
        length = demand.queue_length if demand.mean_queue_length is None else demand.mean_queue_length
        wait_s = length / max(demand.arrivals_per_s, 1.0 / self.settings.slo_s)
        return lambda cost: wait_s


@dataclass(frozen=True)
class StaticCascade:
    """DiffServe-Static: solved once for the peak demand, then held whatever comes; or `held`, where that is given."""

    settings: ServingSettings
    held: CascadeSolution | None = None

    def __call__(self, context: AllocationContext) -> AllocationDecision:
        if (alone := one_left(context, self.settings, [self.settings.light])) is not None:
            return alone
        solution = self.held or self._solved(context)
        # What it cannot carry it is late with: a static system knows nothing of admission.
        return as_decision(context, self.settings, replace(solution, admission_rate=1.0), ())

    def _solved(self, context: AllocationContext) -> CascadeSolution:
        settings = self.settings
        problem = CascadeProblem(
            demand=settings.peak_per_s * settings.overprovision,
            device_count=context.holder_count(settings.light, settings.heavy),
            slo_s=settings.slo_s,
            light=batch_costs(context, settings.light, settings.batch_sizes),
            heavy=batch_costs(context, settings.heavy, settings.batch_sizes, settings.reuse_share),
            deferral=settings.deferral,
            thresholds=grid(settings.threshold_count),
            light_queue_s=same_again,
            heavy_queue_s=same_again,
            discriminator_s=scoring_s(context, settings.discriminator_s, [settings.discriminator]),
        )
        return solve(problem)


def same_again(cost: BatchCost) -> float:
    """Return q(b) = e(b): a request waits for one batch before its own."""
    return cost.latency_s


def _twice_the_execution(cost: BatchCost) -> float:
    """q(b) = 2 e(b): "estimate queuing delays by assuming it to be twice the execution delay" (section 4.5)."""
    return 2.0 * cost.latency_s


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


def next_batches(
    before: tuple[float, float], light: ModelDemand, heavy: ModelDemand, limit: int
) -> tuple[float, float]:
    """Return the batches of the light and the heavy model by Clipper's rule: one more after a period without
    violations, half after one with."""
    return _next_batch(before[0], light, limit), _next_batch(before[1], heavy, limit)


def _next_batch(batch: float, demand: ModelDemand, limit: int) -> float:
    if demand.violation_count > 0:
        return float(max(1, int(batch) // 2))
    # Nothing is learnt about a batch from a pool that nobody asked for anything.
    return float(min(int(batch) + 1, limit)) if demand.arrivals_per_s > 0 else batch
