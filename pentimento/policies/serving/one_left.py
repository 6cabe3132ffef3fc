"""What becomes of a heavy and of lighter models where no worker is left that can hold the one, or any of the others: a
model that is left paints alone."""

from collections.abc import Callable, Iterable, Sequence
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
    able = context.able_models()
    light = next((model for model in lighter if model in able), "")
    if bool(light) == (settings.heavy in able):
        return None
    left = light or settings.heavy
    decision = OneModel(left, settings.slo_s, settings.batch_sizes)(context)
    return replace(with_pools_of(decision, (settings.heavy, *lighter)), memory=context.last.memory)


def with_pools_of(
    decision: AllocationDecision, models: Iterable[str], names: Callable[[str], Iterable[str]] = lambda model: (model,)
) -> AllocationDecision:
    """Return the decision with an empty pool for each of the models that has none, for those who wait there. `names`:
    those that pools of a model have."""
    there = {pool.pool for pool in decision.pools}
    empty = (PoolPlan(name, model, ()) for model in dict.fromkeys(models) for name in names(model) if name not in there)
    return replace(decision, pools=(*decision.pools, *empty))
