"""Forecast the demand: its level and trend, the shares of starts, the deferral curve.

Level and trend are Holt's, averaged with weights that do not depend on the number of planning rounds. A model that
takes `load_s` to load is planned for the demand at that time, if it is larger than now.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from pentimento.policies.plan.costs import profiled_steps
from pentimento.policies.plan.demand import SHARED_COUNT, RateTrend, demand_of, settled_weight, share_weight
from pentimento.policies.plan.entry import IMAGE, LATENT, NOISE, scaled_start_step
from pentimento.policies.plan.followed_curve import FollowedCurve
from pentimento.policies.plan.inputs import PlanInput
from pentimento.policies.plan.settings import ServingSettings

# Requests since the last planning round that are enough to estimate the rate from.
_TOLD_COUNT = 20.0
# Starts of requests that may arrive before the next plan, and the worth of room for one a second, in quality.
NEAR, FAR = "near surge", "far surge"
ROOMS = {NEAR: 0.02, FAR: 0.001}
# Random load and jumps of load, as multiples of the rate. The highest rate counts half after `_FORGOTTEN_S`.
_CHANCE, _JUMP = 0.2, 3.0
_FORGOTTEN_S = 300.0


@dataclass(frozen=True)
class DemandForecast:
    """Hold the demand at `at_s`, in requests a second and shares 0..1.

    `rate` is averaged, `trend` its change a second, `highest` the recent maximum. `latent_share`, `image_share`: shares
    of hits; `latent_saved`, `image_saved`: shares of steps that they save; `latent_told`, `image_told`: requests in
    these averages, at most `SHARED_COUNT`. `curve`: f(t).
    `moved_at_s`: time of the last change of models. `spare_share` of the heavy model's steps from noise may be skipped
    under load, at a loss of `lost_share` of quality.
    """

    rate: float = 0.0
    trend: float = 0.0
    at_s: float = 0.0
    latent_share: float = 0.0
    image_share: float = 0.0
    latent_saved: float = 0.3
    image_saved: float = 0.3
    moved_at_s: float = -math.inf
    highest: float = 0.0
    spare_share: float = 0.0
    lost_share: float = 0.0
    latent_told: float = SHARED_COUNT
    image_told: float = SHARED_COUNT
    curve: FollowedCurve = field(default_factory=FollowedCurve)

    def forecast(self, ahead_s: float) -> float:
        """Return the requests a second to plan for: the rate `ahead_s` seconds from now, if it is above the present."""
        return RateTrend(self.rate, self.trend, self.at_s).ahead(ahead_s)

    def surges(self, planned: float, borne: float = 0.0) -> dict[str, float]:
        """Return the requests a second beyond `planned` that may arrive before the next plan: by chance, and by a jump
        to the recent maximum or to a multiple of the rate. `borne` requests a second can wait for another plan."""
        near = _CHANCE * planned
        far = max(self.highest, _JUMP * self.rate, planned + near) - planned - near
        return {NEAR: max(near - borne, 0.0), FAR: max(far - max(borne - near, 0.0), 0.0)}

    def by_start(self, ahead_s: float) -> dict[str, float]:
        """Return the forecast by kind of start."""
        rate, hits = self.forecast(ahead_s), self.latent_share + self.image_share
        return {NOISE: rate * (1.0 - hits), LATENT: rate * self.latent_share, IMAGE: rate * self.image_share}


def observed_demand(context: PlanInput, settings: ServingSettings, before: DemandForecast | None) -> DemandForecast:
    """Return the demand of this planning round, from that of the last one. Demand for models that are not planned, such
    as those of another suite, does not count."""
    planned = {settings.heavy, settings.light, *settings.small_models}
    context = replace(context, demand=tuple(one for one in context.demand if one.model in planned))
    came = sum(demand.arrivals_per_s - demand.sent_on_per_s for demand in context.demand)
    if before is None:
        rate = settings.expected_per_s or max(came, 0.0)
        curve = _followed(context, settings, FollowedCurve(settings.deferral))
        first = DemandForecast(rate=rate, at_s=context.now_s, latent_told=0.0, image_told=0.0, curve=curve)
        return _with_starts(context, settings, _with_thinnable(context, settings, first))
    elapsed_s = context.now_s - before.at_s
    is_told = came * elapsed_s >= _TOLD_COUNT
    newest_s = settled_weight(settings.demand_weight, max(before.rate, came) if is_told else before.rate)
    smooth = RateTrend(before.rate, before.trend, before.at_s).after(context.now_s, came, newest_s)
    # Observations of one curve do not apply to a curve that was registered later.
    is_same = before.curve.measured == settings.deferral
    curve = _followed(context, settings, before.curve) if is_same else FollowedCurve(settings.deferral)
    highest = max(smooth.rate, before.highest * 0.5 ** (elapsed_s / _FORGOTTEN_S))
    known = replace(before, **vars(smooth), highest=highest, curve=curve)
    return _with_starts(context, settings, _with_thinnable(context, settings, known))


def refines(context: PlanInput, settings: ServingSettings, saved: float) -> bool:
    """Return whether any small model can start from an image that saves that share (0..1) of the steps."""
    return any(starts_from_images(context, settings, small, saved) for small in settings.small_models)


def starts_from_images(context: PlanInput, settings: ServingSettings, model: str, saved: float) -> bool:
    """Return whether the model can start from such an image: a model with too few steps to skip any cannot."""
    steps = profiled_steps(context, model)
    total = profiled_steps(context, settings.heavy) or settings.step_count
    return not steps or scaled_start_step(round(saved * total), total, steps) > 0


def as_planned_for(context: PlanInput, settings: ServingSettings, known: DemandForecast) -> DemandForecast:
    """Return the demand for planning routes: without hits of images if only the heavy model can start from them."""
    return known if refines(context, settings, known.image_saved) else replace(known, image_share=0.0)


def _with_thinnable(context: PlanInput, settings: ServingSettings, known: DemandForecast) -> DemandForecast:
    told = demand_of(context, settings.heavy).thinnable
    if not told.request_count:
        return known
    weight = share_weight(told.request_count)
    spare = known.spare_share + weight * (told.spare_shares / told.request_count - known.spare_share)
    lost = known.lost_share + weight * (told.lost_shares / told.request_count - known.lost_share)
    return replace(known, spare_share=spare, lost_share=lost)


def _with_starts(context: PlanInput, settings: ServingSettings, known: DemandForecast) -> DemandForecast:
    found: dict[str, Any] = {}
    for kind in (LATENT, IMAGE):
        share, saved, counted = (getattr(known, f"{kind}_{part}") for part in ("share", "saved", "told"))
        # Models that cannot start from an image report no hits of images.
        told = [
            start
            for demand in context.demand
            for start in demand.starts
            if kind == LATENT or starts_from_images(context, settings, demand.model, saved)
        ]
        total = sum(start.request_count for start in told)
        # The first requests have equal weights: an average that began at 0 would count the first hits as misses.
        weight = max(share_weight(total), total / max(counted + total, 1.0))
        own = [start for start in told if start.kind == kind and start.step_count > 0]
        count = sum(start.request_count for start in own)
        newest = sum(start.request_count * start.start_step / start.step_count for start in own) / max(count, 1)
        found[f"{kind}_share"] = share + weight * (count / max(total, 1) - share)
        found[f"{kind}_saved"] = saved + weight * (newest - saved) if count else saved
        found[f"{kind}_told"] = min(counted + total, SHARED_COUNT)
    return replace(known, **found)


def _followed(context: PlanInput, settings: ServingSettings, before: FollowedCurve) -> FollowedCurve:
    return before.after(demand_of(context, settings.light).confidences) if settings.light else before
