"""What becomes of a cascade where no worker is left that can hold one of its two models: the other one paints alone."""

from dataclasses import replace

from pentimento.domain.fleet import PoolPlan
from pentimento.policies.allocation import AllocationContext, AllocationDecision
from pentimento.policies.serving.settings import ServingSettings
from pentimento.policies.serving.uniform import OneModel


def one_left(context: AllocationContext, settings: ServingSettings) -> AllocationDecision | None:
    """Return the decision by which one of the light and the heavy model has all devices, since no worker can hold the
    other one; None where both can be held, or neither. What is remembered stays for when the other one is back."""
    able = {model for worker in context.workers() for model in worker.models}
    left = [model for model in (settings.light, settings.heavy) if model in able]
    if len(left) != 1:
        return None
    decision = OneModel(left[0], settings.slo_s, settings.batch_sizes)(context)
    gone = settings.heavy if left[0] == settings.light else settings.light
    pools = (*decision.pools, PoolPlan(gone, gone, ()))
    return replace(decision, pools=pools, memory=context.last.memory)
