"""Follow the measured quality of hits: raise a threshold that breaks its promise, and lower it again.

A profile was measured once, on some prompts. While the suite serves, some hits are generated again from noise. These
samples are tested by the profile's rule (`profiles.rules`): by the share of hits that keep alpha, with 0.95 as the
promise, or by the mean of all hits, if the rule of the table is MEAN: good hits may then compensate for bad ones. A
threshold moves with hysteresis:

- Up if the promise is surely broken: the share's upper bound is below 0.95, in the newest JUDGED samples or in the
  newest RECENT, as old samples may hide a change of prompts. The threshold goes to the lowest similarity at which
  the samples keep the promise and the least similar ones do not surely break it; to HIGHEST if there is none. A raised
  threshold rises again if the least similar hits surely break the promise, even if the other hits keep it: few samples
  raised it, and the error is most likely just above it.
- Down by half of its way back if the promise is surely kept: the share's lower bound, in the samples since the last
  move, is at least 0.95. No sample carries two moves down, and a move takes at least 59 samples.
- Not at all in between, never below the profile's similarity, and never to where the newest JUDGED samples, or the
  least similar of them, still break the promise.

Bounds are Clopper and Pearson's (1934), one-sided at CONFIDENCE each.
"""

import sys
from collections.abc import Sequence
from functools import cache

from pentimento.domain.online_quality import AchievedQuality, QualitySample, ThresholdPosition
from pentimento.profiles.rules import (
    CONFIDENCE,
    REQUIRED_SHARE,
    ImageSample,
    ThresholdRule,
    mean_is_surely,
    share_is_surely,
)

# The cosine of a prompt with itself is 1 except for rounding: an identical prompt is found from here on.
HIGHEST = 0.9999
# A single failure would "surely" break a share of 0.95.
FEWEST_TO_RAISE = 10
# Newest samples that place a threshold, and newest samples that are also tested separately.
JUDGED = 200
RECENT = 60
# Fewest of the least similar hits that are tested separately.
_FEWEST_OF_THE_LEAST = 5
# A falling threshold this near to the profile's own similarity returns to it.
_NEAR = 0.005
_BISECTIONS = 40


def achieved_quality(samples: Sequence[QualitySample], in_force: float, alpha: float) -> AchievedQuality | None:
    """Return the quality that hits with a similarity of at least `in_force` kept; None without any. `alpha` (0..1) is
    the promised share."""
    served = _served(samples, in_force)
    if not served:
        return None
    kept = sum(sample.keeps(alpha) for sample in served)
    low, high = share_bounds(kept, len(served))
    ratios = sorted(_ratio(sample) for sample in served)
    # The share beyond the required one may fall short.
    least = ratios[int(len(ratios) * (1.0 - REQUIRED_SHARE) + 1e-9)]
    return AchievedQuality(len(served), kept / len(served), low, high, least, *_alpha_bounds(ratios))


def share_bounds(kept: int, count: int) -> tuple[float, float]:
    """Return the lower and the upper bound of a share after `kept` of `count` > 0, each at CONFIDENCE."""
    return _lower_bound(kept, count), 1.0 - _lower_bound(count - kept, count)


def followed(
    samples: Sequence[QualitySample],
    position: ThresholdPosition,
    profiled: float,
    alpha: float,
    rule: ThresholdRule = ThresholdRule.LOWER_BOUND,
) -> ThresholdPosition:
    """Return the position of a threshold after these samples of its hits. `profiled` is the profile's own similarity;
    it is in force unless the position is above it."""
    in_force = max(position.similarity, profiled)
    newest = max((sample.number for sample in samples), default=0)
    by_age = sorted(samples, key=lambda sample: sample.number)
    judged = by_age[-JUDGED:]
    is_broken = _broken_by_the_least if in_force > profiled else _surely_broken
    for seen in (judged, by_age[-RECENT:]):
        served = _served(seen, in_force)
        if len(served) >= FEWEST_TO_RAISE and is_broken(served, alpha, rule):
            raised = _raised(seen, in_force, alpha, rule)
            return ThresholdPosition(raised, newest) if raised > in_force else position
    fresh = [sample for sample in samples if sample.number > position.moved_at_number]
    if in_force > profiled and _surely_kept(_served(fresh, in_force), alpha, rule):
        halfway = (in_force + profiled) / 2
        lowered = profiled if halfway - profiled < _NEAR else halfway
        if not _broken_by_the_least(_served(judged, lowered), alpha, rule):
            # A threshold that is back must follow a later profile, so it holds no similarity itself.
            return ThresholdPosition(lowered if lowered > profiled else ThresholdPosition().similarity, newest)
    return position


def _served(samples: Sequence[QualitySample], in_force: float) -> list[ImageSample]:
    return [
        ImageSample(sample.quality, sample.scratch_quality, sample.similarity)
        for sample in samples
        if sample.similarity >= in_force
    ]


def _raised(samples: Sequence[QualitySample], in_force: float, alpha: float, rule: ThresholdRule) -> float:
    """Return the lowest similarity above `in_force` at and above which the samples keep the promise, and the least
    similar ones do not surely break it. The second condition alone would raise the threshold again and again."""
    for similarity in sorted({sample.similarity for sample in samples if in_force < sample.similarity < HIGHEST}):
        served = _served(samples, similarity)
        if _keeps(served, alpha, rule) and not _broken_by_the_least(served, alpha, rule):
            return similarity
    return HIGHEST


def _keeps(served: Sequence[ImageSample], alpha: float, rule: ThresholdRule) -> bool:
    """Return whether the samples keep the promise, without a confidence bound."""
    if rule is ThresholdRule.MEAN:
        return sum(_margins(served, alpha)) >= 0.0
    return _kept(served, alpha) >= REQUIRED_SHARE * len(served)


def _surely_kept(served: Sequence[ImageSample], alpha: float, rule: ThresholdRule) -> bool:
    if rule is ThresholdRule.MEAN:
        return mean_is_surely(_margins(served, alpha))
    return share_is_surely(_kept(served, alpha), len(served), REQUIRED_SHARE)


def _surely_broken(served: Sequence[ImageSample], alpha: float, rule: ThresholdRule) -> bool:
    if rule is ThresholdRule.MEAN:
        return mean_is_surely([-margin for margin in _margins(served, alpha)], strictly=True)
    return share_is_surely(len(served) - _kept(served, alpha), len(served), 1.0 - REQUIRED_SHARE)


def _broken_by_the_least(served: Sequence[ImageSample], alpha: float, rule: ThresholdRule) -> bool:
    """Return whether all hits, or at least `_FEWEST_OF_THE_LEAST` of the least similar, surely break the promise."""
    if rule is ThresholdRule.MEAN:
        return _surely_broken(served, alpha, rule)
    failed_count, ordered = 0, sorted(served, key=lambda sample: sample.similarity)
    for count, (sample, following) in enumerate(zip(ordered, [*ordered[1:], None], strict=True), 1):
        failed_count += not sample.keeps(alpha)
        ends = following is None or following.similarity > sample.similarity
        if ends and count >= _FEWEST_OF_THE_LEAST and failed_count >= _fewest_that_break(count):
            return True
    return False


@cache
def _fewest_that_break(count: int) -> int:
    """Return the fewest failures among `count` hits that surely break the promise."""
    broken = (failed for failed in range(count + 1) if share_is_surely(failed, count, 1.0 - REQUIRED_SHARE))
    return next(broken, count + 1)


def _kept(served: Sequence[ImageSample], alpha: float) -> int:
    return sum(sample.keeps(alpha) for sample in served)


def _margins(served: Sequence[ImageSample], alpha: float) -> list[float]:
    return [sample.margin(alpha) for sample in served]


def _ratio(sample: ImageSample) -> float:
    """Return the share of the from-scratch quality; 1 or 0 if there was none to keep."""
    if sample.full_quality > 0:
        # A tiny quality from scratch would give infinity.
        return min(max(sample.quality / sample.full_quality, 0.0), sys.float_info.max)
    return float(sample.quality >= sample.full_quality)


def _alpha_bounds(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the largest share of the quality that 95 % of the hits surely keep (0 for none), and the largest that they
    do not surely miss; `ratios` are ascending."""
    count, low, high = len(ratios), 0.0, 0.0
    for below, ratio in enumerate(ratios):
        kept = count - below
        if share_is_surely(kept, count, REQUIRED_SHARE):
            low = ratio
        if not share_is_surely(below, count, 1.0 - REQUIRED_SHARE):
            high = ratio
    return low, high


def _lower_bound(kept: int, count: int) -> float:
    """Return the largest share that is surely reached."""
    low, high = 0.0, 1.0
    if kept == count:
        return float((1.0 - CONFIDENCE) ** (1.0 / count))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if share_is_surely(kept, count, middle) else (low, middle)
    return low
