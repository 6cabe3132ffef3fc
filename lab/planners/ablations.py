"""Ablations and relatives of DiffServe: static threshold, AIMD batching, no queueing model, static cascade."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pentimento.policies.allocation import AllocationContext, AllocationDecision, ModelDemand
from pentimento.policies.serving.cascade_problem import CascadeProblem, CascadeSolution, QueueDelay, grid, solve
from pentimento.policies.serving.cascades import CascadeAllocator, as_decision
from pentimento.policies.serving.costs import BatchCost, batch_costs, scoring_s
from pentimento.policies.serving.demand import demand_of
from pentimento.policies.serving.one_left import one_left
from pentimento.policies.serving.settings import ServingSettings


@dataclass(frozen=True)
class AblatedCascade(CascadeAllocator):
    """DiffServe's allocator with one of its parts replaced.

    `fixed_threshold` does not move t ("static threshold"). `queueing_model` off replaces Little's law by q(b) = 2 e(b)
    ("no queueing model"). `relaxed`: see CascadeProblem. `solver`: by enumeration, or by a MILP (`cascade_milp`).
    `aimd` takes batch sizes from additive increase and multiplicative decrease on SLO violations instead of the solver,
    which then plans for throughput only; the memory ends with the batch sizes.
    """

    fixed_threshold: float | None = None
    queueing_model: bool = True
    aimd: bool = False
    relaxed: bool = False
    solver: Callable[[CascadeProblem], CascadeSolution] = solve

    def __call__(self, context: AllocationContext) -> AllocationDecision:
        decision = super().__call__(context)
        if not self.aimd or one_left(context, self.settings, [self.settings.light]) is not None:
            return decision
        return replace(decision, memory=(*decision.memory[:_KEPT], *self._batches(context)))

    def solution(self, context: AllocationContext, problem: CascadeProblem) -> CascadeSolution:
        """Solve the problem with its parts replaced."""
        if self.fixed_threshold is not None:
            problem = replace(problem, thresholds=(self.fixed_threshold,))
        if self.aimd:
            problem = self._with_batches(context, problem)
        return self.solver(replace(problem, relaxed=self.relaxed))

    def _with_batches(self, context: AllocationContext, problem: CascadeProblem) -> CascadeProblem:
        settings, (light, heavy) = self.settings, self._batches(context)
        return replace(
            problem,
            slo_s=math.inf,
            light=batch_costs(context, settings.light, (int(light),)),
            heavy=batch_costs(context, settings.heavy, (int(heavy),), settings.reuse_share),
        )

    def _batches(self, context: AllocationContext) -> tuple[float, float]:
        """Return the next batch sizes, none beyond those measured."""
        settings, memory = self.settings, context.last.memory
        before = (memory[_KEPT], memory[_KEPT + 1]) if len(memory) > _KEPT else (1.0, 1.0)
        light, heavy = demand_of(context, settings.light), demand_of(context, settings.heavy)
        batches = next_batches(before, light, heavy, max(settings.batch_sizes))
        measured = (float(batch_costs(context, model)[-1].batch_size) for model in (settings.light, settings.heavy))
        light_batch, heavy_batch = map(min, batches, measured)
        return light_batch, heavy_batch

    def queue_delay(self, demand: ModelDemand) -> QueueDelay:
        """Return q(b) of a pool."""
        return super().queue_delay(demand) if self.queueing_model else _twice_the_execution


# length of the memory of DiffServe's allocator
_KEPT = 4


@dataclass(frozen=True)
class StaticCascade:
    """DiffServe-Static: solved once for the peak demand, or fixed to `held`."""

    settings: ServingSettings
    held: CascadeSolution | None = None

    def __call__(self, context: AllocationContext) -> AllocationDecision:
        if (alone := one_left(context, self.settings, [self.settings.light])) is not None:
            return alone
        solution = self.held or self._solved(context)
        # Excess demand is late: a static system has no admission control.
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
    """Q(b) = 2 e(b): "estimate queuing delays by assuming it to be twice the execution delay" (section 4.5)."""
    return 2.0 * cost.latency_s


def next_batches(
    before: tuple[float, float], light: ModelDemand, heavy: ModelDemand, limit: int
) -> tuple[float, float]:
    """Return the batches of the light and the heavy model by Clipper's rule: one more after a period without
    violations, half after one with."""
    return _next_batch(before[0], light, limit), _next_batch(before[1], heavy, limit)


def _next_batch(batch: float, demand: ModelDemand, limit: int) -> float:
    if demand.violation_count > 0:
        return float(max(1, int(batch) // 2))
    # A pool without requests gives no information about its batch.
    return float(min(int(batch) + 1, limit)) if demand.arrivals_per_s > 0 else batch
