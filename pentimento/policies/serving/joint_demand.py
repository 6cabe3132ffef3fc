"""What the joint allocator knows of the demand: its level and trend, how requests start, how the deferral curve bends.

The level and trend are Holt's: averages whose weights do not depend on how often the allocator is asked. A model that
takes `load_s` to load is planned for the demand of then, where that is the larger one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from pentimento.policies.allocation import AllocationContext
from pentimento.policies.serving.costs import profiled_steps
from pentimento.policies.serving.demand import SHARED_COUNT, demand_of, settled_weight, share_weight
from pentimento.policies.serving.entry import IMAGE, LATENT, NOISE, scaled_start_step
from pentimento.policies.serving.settings import ServingSettings

# Weight of the newest second in the trend, at most a share of that in the level; of a look in the curve.
_TREND_WEIGHT = 0.05
_TREND_SHARE = 0.2
_CURVE_WEIGHT = 0.2
# So many requests since the last look say how many come now, whatever came before.
_TOLD_COUNT = 20.0
# A forecast is at most so many times the level.
_MOST_GROWTH = 2.0
# The starts of requests that may come before the next plan, and what room for one a second is worth in quality.
NEAR, FAR = "near surge", "far surge"
ROOMS = {NEAR: 0.02, FAR: 0.001}
# Load that jumps is so many times what it was. What it has been at most counts half after so many seconds.
_CHANCE, _JUMP = 0.2, 3.0
_FORGOTTEN_S = 300.0


@dataclass(frozen=True)
class JointDemand:
    """Requests a second, averaged, and their change a second; the shares of hits, and the share of the steps that they
    save; the exponent of the deferral curve; when that was, and when devices last changed their models (seconds); the
    highest rate of late; the share of the heavy model's steps from noise that may be left out under load, and the share
    of quality that is lost then; of how many requests the shares of hits are averages, up to as many as such an average
    is of; the mark of the curve that is bent, 0 where it is not known."""

    rate: float = 0.0
    trend: float = 0.0
    at_s: float = 0.0
    latent_share: float = 0.0
    image_share: float = 0.0
    latent_saved: float = 0.3
    image_saved: float = 0.3
    bend: float = 1.0
    moved_at_s: float = -math.inf
    highest: float = 0.0
    spare_share: float = 0.0
    lost_share: float = 0.0
    latent_told: float = SHARED_COUNT
    image_told: float = SHARED_COUNT
    curve: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> "JointDemand | None":
        """Return what an allocator remembers; None where it remembers nothing. What follows is not of demand."""
        return cls(*values[: len(fields(cls))]) if values else None

    def values(self) -> tuple[float, ...]:
        """Return the form in which an allocator remembers it."""
        return (
            self.rate,
            self.trend,
            self.at_s,
            self.latent_share,
            self.image_share,
            self.latent_saved,
            self.image_saved,
            self.bend,
            self.moved_at_s,
            self.highest,
            self.spare_share,
            self.lost_share,
            self.latent_told,
            self.image_told,
            self.curve,
        )

    def forecast(self, ahead_s: float) -> float:
        """Return the requests a second that are to be planned for: those of `ahead_s` seconds from now where they are
        more than those of now."""
        return min(max(self.rate, self.rate + self.trend * ahead_s), _MOST_GROWTH * self.rate)

    def surges(self, planned: float, borne: float = 0.0) -> dict[str, float]:
        """Return the requests a second beyond those that are planned for that may come before the next plan: those of
        chance, and those of a load that jumps, to what it was lately or to a multiple of what it is. `borne`: so many
        can wait until another plan has devices for them."""
        near = _CHANCE * planned
        far = max(self.highest, _JUMP * self.rate, planned + near) - planned - near
        return {NEAR: max(near - borne, 0.0), FAR: max(far - max(borne - near, 0.0), 0.0)}

    def by_start(self, ahead_s: float) -> dict[str, float]:
        """Return the same by kind of start."""
        rate, hits = self.forecast(ahead_s), self.latent_share + self.image_share
        return {NOISE: rate * (1.0 - hits), LATENT: rate * self.latent_share, IMAGE: rate * self.image_share}


def observed_demand(context: AllocationContext, settings: ServingSettings) -> JointDemand:
    """Return the demand after this look, from what was known at the last one. That for models which are not planned,
    as those of another suite, is nobody's here."""
    planned = {settings.heavy, settings.light, *settings.small_models}
    context = replace(context, demand=tuple(one for one in context.demand if one.model in planned))
    before = JointDemand.of(context.last.memory)
    came = sum(demand.arrivals_per_s - demand.sent_on_per_s for demand in context.demand)
    if before is None:
        rate = settings.expected_per_s or max(came, 0.0)
        curve = settings.deferral.mark
        first = JointDemand(rate=rate, at_s=context.now_s, latent_told=0.0, image_told=0.0, curve=curve)
        return _with_starts(context, settings, _with_thinnable(context, settings, first))
    elapsed_s = context.now_s - before.at_s
    is_told = came * elapsed_s >= _TOLD_COUNT
    newest_s = settled_weight(settings.demand_weight, max(before.rate, came) if is_told else before.rate)
    weight = 1.0 - (1.0 - newest_s) ** elapsed_s
    expected, trend = before.rate + before.trend * elapsed_s, before.trend
    if expected < 0.0:
        # A load that fell to nothing falls no further: what comes next is seen at once.
        expected, trend = 0.0, 0.0
    rate = expected + weight * (max(came, 0.0) - expected)
    if elapsed_s > 0.0:
        share = 1.0 - (1.0 - min(_TREND_WEIGHT, _TREND_SHARE * newest_s)) ** elapsed_s
        trend += share * ((rate - before.rate) / elapsed_s - trend)
    # What was seen of another curve says nothing of one that was registered since.
    curve = settings.deferral.mark
    bend = _bend(context, settings, before.bend) if before.curve in (0.0, curve) else 1.0
    highest = max(rate, before.highest * 0.5 ** (elapsed_s / _FORGOTTEN_S))
    known = replace(before, rate=rate, trend=trend, at_s=context.now_s, bend=bend, highest=highest, curve=curve)
    return _with_starts(context, settings, _with_thinnable(context, settings, known))


def refines(context: AllocationContext, settings: ServingSettings, saved: float) -> bool:
    """Return whether any small model can start from an image that saves that share (0..1) of the steps."""
    return any(starts_from_images(context, settings, small, saved) for small in settings.small_models)


def starts_from_images(context: AllocationContext, settings: ServingSettings, model: str, saved: float) -> bool:
    """Return the same of one model: one that takes too few steps to leave any out cannot."""
    steps = profiled_steps(context, model)
    total = profiled_steps(context, settings.heavy) or settings.step_count
    return not steps or scaled_start_step(round(saved * total), total, steps) > 0


def as_planned_for(context: AllocationContext, settings: ServingSettings, known: JointDemand) -> JointDemand:
    """Return the demand as routes are planned for it: where nobody but the heavy model can start from images, requests
    go as if none had any."""
    return known if refines(context, settings, known.image_saved) else replace(known, image_share=0.0)


def _with_thinnable(context: AllocationContext, settings: ServingSettings, known: JointDemand) -> JointDemand:
    told = demand_of(context, settings.heavy).thinnable
    if not told.request_count:
        return known
    weight = share_weight(told.request_count)
    spare = known.spare_share + weight * (told.spare_shares / told.request_count - known.spare_share)
    lost = known.lost_share + weight * (told.lost_shares / told.request_count - known.lost_share)
    return replace(known, spare_share=spare, lost_share=lost)


def _with_starts(context: AllocationContext, settings: ServingSettings, known: JointDemand) -> JointDemand:
    shares, saved = {LATENT: known.latent_share, IMAGE: known.image_share}, {}
    counts = {LATENT: known.latent_told, IMAGE: known.image_told}
    for kind, before in ((LATENT, known.latent_saved), (IMAGE, known.image_saved)):
        # Where no picture can start from an image nothing is heard of those that there are.
        told = [
            start
            for demand in context.demand
            for start in demand.starts
            if kind == LATENT or starts_from_images(context, settings, demand.model, before)
        ]
        total = sum(start.request_count for start in told)
        # The first ones count alike: an average that began with none would take the first hits for misses.
        weight = max(share_weight(total), total / max(counts[kind] + total, 1.0))
        counts[kind] = min(counts[kind] + total, SHARED_COUNT)
        own = [start for start in told if start.kind == kind and start.step_count > 0]
        count = sum(start.request_count for start in own)
        shares[kind] += weight * (count / max(total, 1) - shares[kind])
        newest = sum(start.request_count * start.start_step / start.step_count for start in own) / max(count, 1)
        saved[kind] = before + weight * (newest - before) if count else before
    return replace(
        known,
        latent_share=shares[LATENT],
        image_share=shares[IMAGE],
        latent_saved=saved[LATENT],
        image_saved=saved[IMAGE],
        latent_told=counts[LATENT],
        image_told=counts[IMAGE],
    )


def _bend(context: AllocationContext, settings: ServingSettings, before: float) -> float:
    """f(t) updated online from the confidences that were counted, where they tell most of it."""
    counts = demand_of(context, settings.light).confidences if settings.light else ()
    scored = sum(counts)
    if not scored:
        return before
    edges = [(number + 1) / len(counts) for number in range(len(counts) - 1)]
    edge = max(edges, key=settings.deferral.tells)
    below = sum(counts[: edges.index(edge) + 1]) / scored
    seen = settings.deferral.bend_towards(edge, below)
    if seen is None:
        return before
    weight = _CURVE_WEIGHT * settings.deferral.tells(edge) * min(1.0, scored / 20.0)
    return before + weight * (min(max(seen, 0.2), 5.0) - before)
