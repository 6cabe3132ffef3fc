"""What an allocator reads out of its context about demand, the same in all of them."""

from pentimento.policies.allocation import AllocationContext, ModelDemand


def demand_of(context: AllocationContext, model: str) -> ModelDemand:
    """Return the demand for a model; zero where nobody asked for it."""
    return next((demand for demand in context.demand if demand.model == model), ModelDemand(model, 0.0))


def smoothed(newest: float, before: float, weight: float) -> float:
    """Return the exponentially weighted moving average after `newest`, which counts `weight`; all of it where nothing
    is known (0)."""
    return before + weight * (newest - before) if before > 0.0 else newest


def averaged_demand(newest: float, before: float, weight: float, elapsed_s: float) -> float:
    """Return the average of demand `elapsed_s` after it was `before`, demand having been `newest` all the while. It is
    as if demand had been sampled every second with `weight`, so that it does not depend on how often an allocator is
    asked."""
    return smoothed(newest, before, 1.0 - (1.0 - weight) ** elapsed_s)
