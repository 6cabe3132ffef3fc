"""What becomes of a heavy and of lighter models where no worker is left that can hold the one, or any of the others: a
model that is left paints alone."""

from collections.abc import Sequence
from dataclasses import replace

from pentimento.domain.fleet import PoolPlan
from pentimento.policies.allocation import AllocationContext, AllocationDecision
from pentimento.policies.serving.settings import ServingSettings
from pentimento.policies.serving.uniform import OneModel


def one_left(
    context: AllocationContext, settings: ServingSettings, lighter: Sequence[str]
) -> AllocationDecision | None:
    """Return the decision by which the heavy model has all devices, since no worker can hold any of the lighter ones,
    or the first of these that can be held, since none can hold the heavy one. None where both kinds can be held, or
    neither. What is remembered stays for when the other ones are back."""
    able = {model for worker in context.workers() for model in worker.models}
    light = next((model for model in lighter if model in able), "")
    if bool(light) == (settings.heavy in able):
        return None
    left = light or settings.heavy
    decision = OneModel(left, settings.slo_s, settings.batch_sizes)(context)
    there = {pool.pool for pool in decision.pools}
    gone = (PoolPlan(model, model, ()) for model in (settings.heavy, *lighter) if model not in there)
    return replace(decision, pools=(*decision.pools, *gone), memory=context.last.memory)
