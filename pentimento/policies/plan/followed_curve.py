"""Follow f(t) of a cascade by the confidences of a running suite's light images.

    curve = FollowedCurve(measured)                     # the profile's f(t)
    curve = curve.after(demand.confidences)             # once a planning round
    curve.followed.share(0.7)                           # the share of requests to plan for

f(t) at the edges of CONFIDENCE_BINS equal parts of 0..1 is an average over images; the profile counts as
`PROFILE_COUNT` images at first. Within a part the profile's shape stays. An exponent of the profile's curve needs fewer
images, but misses most shifts by more than 0.1 (a constant more confidence, or two kinds of prompts).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from pentimento.domain.fleet import CONFIDENCE_BINS, FollowedDeferral
from pentimento.policies.plan.settings import DeferralCurve

# Images that the profile counts as before the first score: on average the curve moves by 0.06 by chance at most.
PROFILE_COUNT = 50.0
# Images in the average: then nineteen of twenty shares are within 0.05 of f(t), and a shift is followed by 95 % after
# three times as many.
MOST_COUNT = 400.0
_EDGES = tuple((number + 1) / CONFIDENCE_BINS for number in range(CONFIDENCE_BINS))


@dataclass(frozen=True)
class FollowedCurve:
    """Hold f(t) as `measured` and as observed since: `shares` at the upper edges of the parts, an average over
    `image_count` images; none before the first score."""

    measured: DeferralCurve = field(default_factory=DeferralCurve)
    shares: tuple[float, ...] = ()
    image_count: float = PROFILE_COUNT

    def after(self, confidences: Sequence[int]) -> "FollowedCurve":
        """Return the curve after these scores, counted by CONFIDENCE_BINS equal parts of 0..1, or none."""
        scored = sum(confidences)
        if not scored:
            return self
        before = self.shares or tuple(map(self.measured.share, _EDGES))
        weight = scored / (self.image_count + scored)
        shares = (
            share + weight * (below / scored - share)
            for share, below in zip(before, accumulate(confidences), strict=True)
        )
        return FollowedCurve(self.measured, tuple(shares), min(self.image_count + scored, MOST_COUNT))

    @cached_property
    def followed(self) -> DeferralCurve:
        """Return f(t) to plan by."""
        if not self.shares:
            return self.measured
        thresholds = tuple(sorted({0.0, *self.measured.thresholds, *_EDGES}))
        shares = accumulate(map(self._share, thresholds), max)  # rounding must not make it descend
        return DeferralCurve(thresholds, tuple(min(share, 1.0) for share in shares))

    def reported(self, cascade: str) -> FollowedDeferral:
        """Return both curves at the edges of the parts, for people."""
        followed, measured = (tuple(map(curve.share, _EDGES)) for curve in (self.followed, self.measured))
        return FollowedDeferral(cascade, _EDGES, followed, measured)

    def _share(self, threshold: float) -> float:
        """Return f(t), interpolated between the shares at the edges of its part in proportion to the measured curve."""
        part = next(number for number, edge in enumerate(_EDGES) if threshold <= edge)
        at_low, at_high = (self.shares[part - 1] if part else 0.0), self.shares[part]
        low = self.measured.share(_EDGES[part - 1]) if part else 0.0
        high = self.measured.share(_EDGES[part])
        if high > low:
            return at_low + (at_high - at_low) * (self.measured.share(threshold) - low) / (high - low)
        return at_low + (at_high - at_low) * (threshold * CONFIDENCE_BINS - part)
