"""What an allocator reads out of its context about demand, the same in all of them."""

from pentimento.policies.allocation import AllocationContext, ModelDemand


def demand_of(context: AllocationContext, model: str) -> ModelDemand:
    return next((demand for demand in context.demand if demand.model == model), ModelDemand(model, 0.0))


def smoothed(newest: float, before: float, weight: float) -> float:
    """Exponentially weighted moving average; the newest sample counts `weight`, all where nothing is known (0)."""
    return before + weight * (newest - before) if before > 0.0 else newest
