"""From pictures painted with thinned steps to the thinnings that keep the quality asked for.

A sample is a picture that was thinned from step i on to m steps, compared with the same picture with all steps, of the
same seed. From samples to what is allowed by the rules of `selector_profiling`:

- MINIMUM: every picture keeps alpha of the full run's quality.
- LOWER_BOUND: the lower 95 % bound of the share of pictures that keep alpha is at least 0.95.
- MEAN: the lower 95 % bound of the mean of (quality - alpha * full quality) is not below 0. It says nothing of any
  single picture.

No rule goes past a number of steps that it does not allow: what holds of fewer steps behind it is luck.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from pentimento.policies.selector_profiling import REQUIRED_SHARE, ThresholdRule, mean_is_surely, share_is_surely

Begin = TypeVar("Begin", bound=Hashable)


@dataclass(frozen=True)
class ThinnedSample:
    """One picture with thinned steps: its quality, and that of the same picture with all of them."""

    quality: float
    full_quality: float

    def keeps(self, alpha: float) -> bool:
        """Return whether the picture has at least `alpha` (0..1) of the full run's quality. NaN has not."""
        return self.quality >= alpha * self.full_quality


def allows(samples: Sequence[ThinnedSample], alpha: float, rule: ThresholdRule) -> bool:
    """Return whether the pictures of one thinning satisfy the rule. No pictures satisfy none."""
    kept = sum(sample.keeps(alpha) for sample in samples)
    if rule is ThresholdRule.MINIMUM:
        return kept == len(samples) > 0
    if rule is ThresholdRule.LOWER_BOUND:
        return share_is_surely(kept, len(samples), REQUIRED_SHARE)
    return mean_is_surely([sample.quality - alpha * sample.full_quality for sample in samples])


def strictest(by_judge: Sequence[Sequence[ThinnedSample]]) -> list[ThinnedSample]:
    """Return of each picture what the strictest of its judges says: who finds the smallest share of the full run's
    quality left, of 1. With one judge its own samples. What had no quality in full can lose none."""
    if len(by_judge) == 1:
        return list(by_judge[0])
    return [ThinnedSample(min(map(_share, samples)), 1.0) for samples in zip(*by_judge, strict=True)]


def _share(sample: ThinnedSample) -> float:
    if math.isnan(sample.quality) or math.isnan(sample.full_quality):
        return 0.0
    return sample.quality / sample.full_quality if sample.full_quality > 0.0 else 1.0


def mean_share(samples: Sequence[ThinnedSample]) -> float:
    """Return the share of the full run's quality that is left in the mean, 0 where that had none."""
    full = fmean(sample.full_quality for sample in samples)
    return fmean(sample.quality for sample in samples) / full if full > 0.0 else 0.0


def without_luck(holds: Mapping[tuple[Begin, int], bool]) -> frozenset[tuple[Begin, int]]:
    """Return the thinnings, (how they begin, steps taken), that hold: of each beginning, down to the first number of
    steps that does not."""
    found: set[tuple[Begin, int]] = set()
    for begin in {begin for begin, _ in holds}:
        for taken in sorted((taken for begun, taken in holds if begun == begin), reverse=True):
            if not holds[begin, taken]:
                break
            found.add((begin, taken))
    return frozenset(found)
