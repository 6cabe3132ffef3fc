"""One model on every device, whatever comes: vanilla, Clipper-light, Clipper-heavy, the systems that only cache."""

from dataclasses import dataclass

from pentimento.domain.fleet import PoolPlan
from pentimento.policies.allocation import AllocationContext, AllocationDecision
from pentimento.policies.serving.costs import BatchCost, batch_costs
from pentimento.policies.serving.demand import demand_of
from pentimento.policies.serving.entry import EVERY_START
from pentimento.policies.serving.placement import place


@dataclass(frozen=True)
class OneModel:
    """An allocator that gives `model` to all devices. Batches: `batch_size`, or with `aimd` Clipper's rule: one more
    after a period without violations, half after one with, never above what fits the SLO `slo_s`."""

    model: str
    slo_s: float
    batch_sizes: tuple[int, ...] = (1,)
    aimd: bool = False

    def __call__(self, context: AllocationContext) -> AllocationDecision:
        batch = self._batch(context)
        assignments = place(context, {self.model: len(context.workers())}, {self.model: batch})
        models = dict.fromkeys((self.model, *(one.model for one in assignments)))
        workers = {model: tuple(one.worker_id for one in assignments if one.model == model) for model in models}
        pools = (
            PoolPlan(self.model, self.model, workers[self.model], routes=EVERY_START),
            # Models on their way out serve what waits for them.
            *(PoolPlan(model, model, workers[model]) for model in models if model != self.model),
        )
        return AllocationDecision(assignments, pools, memory=(float(batch),))

    def _batch(self, context: AllocationContext) -> int:
        costs = batch_costs(context, self.model, self.batch_sizes)
        largest = _largest_in_time(costs, self.slo_s)
        if not self.aimd:
            return largest
        before = int(context.last.memory[0]) if context.last.memory else 0
        violated = demand_of(context, self.model).violation_count > 0
        return max(1, before // 2) if violated else min(before + 1, largest)


def _largest_in_time(costs: tuple[BatchCost, ...], slo_s: float) -> int:
    return max((cost.batch_size for cost in costs if cost.latency_s <= slo_s), default=costs[0].batch_size)
