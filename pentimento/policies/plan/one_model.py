"""Plan one model on every device: as a policy, or if no worker can hold a policy's other models."""

from collections.abc import Sequence
from dataclasses import dataclass

from pentimento.domain.fleet import Plan, PoolPlan
from pentimento.policies.plan.costs import BatchCost, batch_costs
from pentimento.policies.plan.entry import EVERY_START
from pentimento.policies.plan.inputs import UNNUMBERED, Decision, PlanInput
from pentimento.policies.plan.placement import place, with_pools_of
from pentimento.policies.plan.settings import ServingSettings


@dataclass(frozen=True)
class OneModel:
    """Give `model` to all devices, in the largest batches within `slo_s`."""

    model: str
    slo_s: float
    batch_sizes: tuple[int, ...] = (1,)

    def __call__(self, context: PlanInput) -> Decision:
        batch = self.batch(context)
        assignments = place(context, {self.model: len(context.workers())}, {self.model: batch})
        models = dict.fromkeys((self.model, *(one.model for one in assignments)))
        workers = {model: tuple(one.worker_id for one in assignments if one.model == model) for model in models}
        pools = (
            PoolPlan(self.model, self.model, workers[self.model], routes=EVERY_START),
            # Replaced models serve the requests that wait for them.
            *(PoolPlan(model, model, workers[model]) for model in models if model != self.model),
        )
        return Decision(Plan(UNNUMBERED, assignments, pools))

    def batch(self, context: PlanInput) -> int:
        """Return the batch size of all devices."""
        return _largest_in_time(batch_costs(context, self.model, self.batch_sizes), self.slo_s)


def _largest_in_time(costs: tuple[BatchCost, ...], slo_s: float) -> int:
    return max((cost.batch_size for cost in costs if cost.latency_s <= slo_s), default=costs[0].batch_size)


def one_left(context: PlanInput, settings: ServingSettings, lighter: Sequence[str]) -> Decision | None:
    """Return the decision of one model on all devices, if no worker can hold the heavy or any lighter model.

    The model is the heavy one, or the first lighter one that a worker can hold; None if workers can hold both kinds, or
    neither. The memory stays until the other models are back.
    """
    able = context.able_models()
    light = next((model for model in lighter if model in able), "")
    if bool(light) == (settings.heavy in able):
        return None
    left = light or settings.heavy
    decision = OneModel(left, settings.slo_s, settings.batch_sizes)(context)
    return Decision(with_pools_of(decision.plan, (settings.heavy, *lighter)), context.last.memory)
