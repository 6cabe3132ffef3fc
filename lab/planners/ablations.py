"""Ablations and relatives of DiffServe: static threshold, AIMD batching, no queueing model, static cascade."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pentimento.policies.plan.cascade import CascadeMemory, CascadePolicy, diffserve_cascade
from pentimento.policies.plan.cascade_problem import (
    CascadeProblem,
    CascadeSolution,
    first_stage_alone,
    solve_cascade,
)
from pentimento.policies.plan.costs import BatchCost, batch_costs, scoring_s
from pentimento.policies.plan.demand import demand_of
from pentimento.policies.plan.inputs import Decision, ModelDemand, PlanInput
from pentimento.policies.plan.placement import one_left
from pentimento.policies.plan.settings import ServingSettings


@dataclass(frozen=True)
class AimdMemory(CascadeMemory):
    """Keep the batch sizes of the light and the heavy model, too."""

    batches: tuple[float, float]


@dataclass(frozen=True)
class AblatedCascade(CascadePolicy):
    """DiffServe's policy with one of its parts replaced.

    `fixed_threshold` does not move t ("static threshold"). `queueing_model` off replaces Little's law by q(b) = 2 e(b)
    ("no queueing model"). `relaxed` leaves the heavy model's terms out of the SLO where no request is deferred: the
    paper's Eq. 1 has them always, so that a long heavy queue makes every threshold infeasible, 0 included. `solver`: by
    enumeration, or by a MILP (`cascade_milp`). `aimd` takes batch sizes from additive increase and multiplicative
    decrease on SLO violations instead of the solver, which then plans for throughput only.
    """

    fixed_threshold: float | None = None
    queueing_model: bool = True
    aimd: bool = False
    relaxed: bool = False
    solver: Callable[[CascadeProblem], CascadeSolution] = solve_cascade

    def __call__(self, context: PlanInput) -> Decision:
        decision = super().__call__(context)
        memory = decision.memory
        if not self.aimd or len(self._able(context)) < 2 or not isinstance(memory, CascadeMemory):
            return decision
        own = AimdMemory(memory.demand, memory.at_s, memory.curves, self._batches(context))
        return replace(decision, memory=own)

    def solution(self, context: PlanInput, problem: CascadeProblem) -> CascadeSolution:
        """Solve the problem with its parts replaced."""
        if self.fixed_threshold is not None:
            problem = replace(problem, thresholds=(self.fixed_threshold,))
        if self.aimd:
            problem = self._with_batches(context, problem)
        found = self.solver(problem)
        return (relaxed_solution(problem) if self.relaxed and not found.feasible else None) or found

    def _with_batches(self, context: PlanInput, problem: CascadeProblem) -> CascadeProblem:
        settings, (light, heavy) = self.settings, self._batches(context)
        costs = (
            batch_costs(context, settings.light, (int(light),)),
            batch_costs(context, settings.heavy, (int(heavy),), settings.reuse_share),
        )
        return replace(problem, slo_s=math.inf, stages=costs)

    def _batches(self, context: PlanInput) -> tuple[float, float]:
        """Return the next batch sizes, none beyond those measured."""
        settings, memory = self.settings, context.last.memory
        before = memory.batches if isinstance(memory, AimdMemory) else (1.0, 1.0)
        light, heavy = demand_of(context, settings.light), demand_of(context, settings.heavy)
        batches = next_batches(before, light, heavy, max(settings.batch_sizes))
        measured = (float(batch_costs(context, model)[-1].batch_size) for model in (settings.light, settings.heavy))
        light_batch, heavy_batch = map(min, batches, measured)
        return light_batch, heavy_batch

    def wait_s(self, demand: ModelDemand, cost: BatchCost) -> float:
        """Return q(b); without the queueing model twice the execution (section 4.5)."""
        return super().wait_s(demand, cost) if self.queueing_model else 2.0 * cost.latency_s


def ablated(settings: ServingSettings, **replaced: Any) -> AblatedCascade:
    """Return DiffServe's policy for these settings with the given fields of `AblatedCascade`."""
    return AblatedCascade(settings, diffserve_cascade(settings), **replaced)


def relaxed_solution(problem: CascadeProblem) -> CascadeSolution | None:
    """Return the solution where no request is deferred and only the first stage keeps the SLO; None where it cannot."""
    in_time = [
        cost
        for cost in problem.stages[0]
        if cost.felt_s + problem.discriminator_s <= problem.slo_s and problem.devices(1.0, cost) <= problem.device_count
    ]
    if not in_time or problem.curves[0].share(problem.thresholds[0]) > 0.0:
        return None
    alone = first_stage_alone(replace(problem, stages=(tuple(in_time), problem.stages[1])))
    return replace(alone, feasible=True, admission_rate=1.0)


@dataclass(frozen=True)
class StaticCascade:
    """DiffServe-Static: solved once for the peak demand, or fixed to `held`."""

    settings: ServingSettings
    held: CascadeSolution | None = None

    def __call__(self, context: PlanInput) -> Decision:
        if (alone := one_left(context, self.settings, [self.settings.light])) is not None:
            return alone
        solution = self.held or self._solved(context)
        policy = CascadePolicy(self.settings, diffserve_cascade(self.settings))
        # Excess demand is late: a static system has no admission control.
        return Decision(policy.plan(context, replace(solution, admission_rate=1.0)))

    def _solved(self, context: PlanInput) -> CascadeSolution:
        settings = self.settings
        stages = (
            batch_costs(context, settings.light, settings.batch_sizes),
            batch_costs(context, settings.heavy, settings.batch_sizes, settings.reuse_share),
        )
        return solve_cascade(
            CascadeProblem(
                settings.peak_per_s * settings.overprovision,
                context.holder_count(settings.light, settings.heavy),
                settings.slo_s,
                tuple(tuple(replace(cost, wait_s=same_again(cost)) for cost in stage) for stage in stages),
                (settings.deferral,),
                scoring_s(context, settings.discriminator_s, [settings.discriminator]),
            )
        )


def same_again(cost: BatchCost) -> float:
    """Return q(b) = e(b): a request waits for one batch before its own."""
    return cost.latency_s


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
