"""Plan one model on every device."""

from dataclasses import dataclass

from pentimento.domain.fleet import PoolPlan
from pentimento.policies.allocation import AllocationContext, AllocationDecision
from pentimento.policies.serving.costs import BatchCost, batch_costs
from pentimento.policies.serving.entry import EVERY_START
from pentimento.policies.serving.placement import place


@dataclass(frozen=True)
class OneModel:
    """An allocator that gives `model` to all devices, in the largest batches within `slo_s`."""

    model: str
    slo_s: float
    batch_sizes: tuple[int, ...] = (1,)

    def __call__(self, context: AllocationContext) -> AllocationDecision:
        batch = self.batch(context)
        assignments = place(context, {self.model: len(context.workers())}, {self.model: batch})
        models = dict.fromkeys((self.model, *(one.model for one in assignments)))
        workers = {model: tuple(one.worker_id for one in assignments if one.model == model) for model in models}
        pools = (
            PoolPlan(self.model, self.model, workers[self.model], routes=EVERY_START),
            # Models on their way out serve what waits for them.
            *(PoolPlan(model, model, workers[model]) for model in models if model != self.model),
        )
        return AllocationDecision(assignments, pools, memory=(float(batch),))

    def batch(self, context: AllocationContext) -> int:
        """Return the batch size of all devices."""
        return _largest_in_time(batch_costs(context, self.model, self.batch_sizes), self.slo_s)


def _largest_in_time(costs: tuple[BatchCost, ...], slo_s: float) -> int:
    return max((cost.batch_size for cost in costs if cost.latency_s <= slo_s), default=costs[0].batch_size)
