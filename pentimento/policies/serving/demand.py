"""What an allocator reads out of its context about demand, the same in all of them."""

from pentimento.domain.fleet import Plan
from pentimento.policies.plan.inputs import ModelDemand, PlanInput
from pentimento.policies.plan.settings import DeferralCurve
from pentimento.policies.serving.entry import NOISE

# How fast the profiled curve follows what is observed, where that tells most, and how far.
_CURVE_WEIGHT = 0.2
_LEAST_BEND, _MOST_BEND = 0.2, 5.0
_SETTLED_COUNT = 40.0
_SLOWEST_S = 120.0
# Requests that an average of shares is of.
SHARED_COUNT = 50.0


def demand_of(context: PlanInput, model: str) -> ModelDemand:
    """Return the demand for a model, zero where no request named it."""
    return next((demand for demand in context.demand if demand.model == model), ModelDemand(model, 0.0))


def smoothed(newest: float, before: float, weight: float) -> float:
    """Return the exponentially weighted moving average after `newest`, which counts `weight`; all of it where nothing
    is known (0)."""
    return before + weight * (newest - before) if before > 0.0 else newest


def observed_bend(context: PlanInput, deferral: DeferralCurve, scored: ModelDemand, before: float) -> float:
    """Return the exponent of f(t), updated online: the one that the share asks for which was sent on from that model at
    the last threshold, averaged with what it was before."""
    threshold = threshold_of(context.last.plan, scored.model)
    seen = deferral.bend_towards(threshold, scored.deferred_share)
    if seen is None:
        return before
    return smoothed(min(max(seen, _LEAST_BEND), _MOST_BEND), before, _CURVE_WEIGHT * deferral.tells(threshold))


def threshold_of(plan: Plan, pool: str, start: str = NOISE) -> float:
    """Return the confidence that images of the pool must exceed; 0 where they are not scored."""
    stages = (stage for cascade in plan.cascades for stage in cascade.stages if stage.pool == pool)
    found = (one.confidence for stage in stages for one in stage.thresholds if one.start == start)
    return next(found, 0.0)


def settled_weight(weight: float, rate: float) -> float:
    """Return the weight of the newest second in an average of the demand that has been `rate` (requests a second): a
    smaller one where it would be of fewer than forty requests, but never one of more than two minutes. A few seconds of
    a slow fleet's demand say little."""
    return min(weight, max(rate / _SETTLED_COUNT, 1.0 / _SLOWEST_S))


def share_weight(request_count: int) -> float:
    """Return the weight of so many requests in an average over the last fifty or so."""
    return 1.0 - (1.0 - 1.0 / SHARED_COUNT) ** request_count


def averaged_demand(newest: float, before: float, weight: float, elapsed_s: float) -> float:
    """Return the average of demand `elapsed_s` after it was `before`, demand having been `newest` all the while. It is
    as if demand had been sampled every second with `weight`, so that it does not depend on how often an allocator is
    asked."""
    return smoothed(newest, before, 1.0 - (1.0 - weight) ** elapsed_s)
