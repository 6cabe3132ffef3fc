"""What an allocator reads out of its context about demand, the same in all of them."""

from pentimento.policies.allocation import AllocationContext, ModelDemand


def demand_of(context: AllocationContext, model: str) -> ModelDemand:
    return next((demand for demand in context.demand if demand.model == model), ModelDemand(model, 0.0))


def smoothed(newest: float, before: float, weight: float) -> float:
    """Exponentially weighted moving average; the newest sample counts `weight`, all where nothing is known (0)."""
    return before + weight * (newest - before) if before > 0.0 else newest


def averaged_demand(newest: float, before: float, weight: float, elapsed_s: float) -> float:
    """The average of demand `elapsed_s` after it was `before`, demand having been `newest` all the while: as if it had
    been sampled every second with `weight`. So it does not hang on how often an allocator is asked."""
    return smoothed(newest, before, 1.0 - (1.0 - weight) ** elapsed_s if elapsed_s > 0.0 else 0.0)
