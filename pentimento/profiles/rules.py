"""Turn measured images into permissions that surely hold.

A sample is an image made with a shortcut (a reused start, fewer steps, a LoRA that came late) and compared with the
image made without it, from the same prompt and seed. Three rules read the same samples:

- MINIMUM: every image keeps the quality (NIRVANA, Algorithm 1, as section 5.3.1 describes it).
- LOWER_BOUND, ours: the lower 95 % bound (Clopper and Pearson, 1934, one-sided) of the share of images that keep it is
  at least 0.95. It tolerates single failures, and needs 59 samples or more.
- MEAN (MoDM, section 5.2): the lower 95 % bound of the mean margin over that quality is not below 0. It promises
  nothing for a single image.

No rule extends beyond the samples, or past a step that it does not allow: success after a failure is luck.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from itertools import groupby, takewhile
from statistics import fmean
from typing import TypeVar

REQUIRED_SHARE = 0.95
CONFIDENCE = 0.95
LEAST_COSINE = 0.99
LEAST_STRENGTH = 0.95
# One-sided 95 % of the normal distribution; a mean of fewer samples is not assumed to follow it.
_Z = 1.6448536269514722
_FEWEST_FOR_MEAN = 30
# Standard errors above 0 at which a mean allows early: the last test then keeps nearly its 5 % (Haybittle 1971; Peto
# 1976).
_EARLY_Z = 3.0
# A share that settles LOWER_BOUND early: most shortcuts that hold keep every image, or all but a few of a thousand.
_USUAL_SHARE = 0.998

Begin = TypeVar("Begin", bound=Hashable)
Place = TypeVar("Place")


class ThresholdRule(Enum):
    """Name the rule that turns samples into a permission."""

    MINIMUM = "minimum"
    LOWER_BOUND = "lower_bound"
    MEAN = "mean"


class RuleChoice(Enum):
    """Choose how a deployment reads its profiles: by one rule for all, or by each profile's own."""

    PROFILE = "profile"
    MINIMUM = "minimum"
    LOWER_BOUND = "lower_bound"
    MEAN = "mean"

    @property
    def rule(self) -> ThresholdRule | None:
        """Return the rule for all profiles; None for each profile's own."""
        return None if self is RuleChoice.PROFILE else ThresholdRule(self.value)


@dataclass(frozen=True)
class Tally:
    """Count all samples and the kept ones, and sum up each margin and its square."""

    count: int = 0
    kept: int = 0
    sums: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def allows(self, rule: ThresholdRule) -> bool:
        """Return whether the samples satisfy the rule. No samples satisfy none."""
        if rule is ThresholdRule.MINIMUM:
            return self.kept == self.count > 0
        if rule is ThresholdRule.LOWER_BOUND:
            return share_is_surely(self.kept, self.count, REQUIRED_SHARE)
        return bool(self.sums) and all(_mean_holds(*sums, self.count) for sums in self.sums.values())


@dataclass(frozen=True)
class ImageSample:
    """Hold an image's quality, the quality without the shortcut, and the similarity (cosine) of a reused start."""

    quality: float
    full_quality: float
    similarity: float = 1.0

    def keeps(self, alpha: float) -> bool:
        """Return whether the image has at least `alpha` (0..1) of the full quality; False for NaN."""
        return self.quality >= alpha * self.full_quality

    def margin(self, alpha: float) -> float:
        """Return the quality above `alpha` of the full one."""
        return self.quality - alpha * self.full_quality


@dataclass(frozen=True)
class LateSample:
    """Describe an image with a late LoRA (Katz, section 6).

    `cosine` compares its final latents with those of the image with the LoRA from the start. `strength` is the share of
    the LoRA's own change that remains: 1 as from the start, 0 as without it. `alike` is the cosine of the latents with
    the LoRA and without it after those K steps: Katz's measure, which does not detect a lost style.
    """

    cosine: float
    strength: float
    alike: float

    @property
    def is_kept(self) -> bool:
        """Return whether image and style are near enough to those of a LoRA from the start; False for NaN."""
        return self.cosine >= LEAST_COSINE and self.strength >= LEAST_STRENGTH


def tally(samples: Sequence[ImageSample], alpha: float) -> Tally:
    """Count images by the share `alpha` (0..1) of the full quality."""
    margins = [sample.margin(alpha) for sample in samples]
    return Tally(len(samples), sum(sample.keeps(alpha) for sample in samples), {"quality": _sums(margins)})


def late_tally(samples: Sequence[LateSample]) -> Tally:
    """Count images with a late LoRA by cosine and strength."""
    cosines = _sums([sample.cosine - LEAST_COSINE for sample in samples])
    strengths = _sums([sample.strength - LEAST_STRENGTH for sample in samples])
    kept = sum(sample.is_kept for sample in samples)
    return Tally(len(samples), kept, {"cosine": cosines, "strength": strengths})


def late_is_settled(samples: Sequence[LateSample], planned: int, rule: ThresholdRule) -> bool:
    """Return whether the first of `planned` samples settle the rule's verdict, which is then `allows`'s.

    MEAN is refused once even the upper bound, at CONFIDENCE, of what `planned` samples will show misses it; before 30
    only if a mean is surely below 0. A wrong refusal makes images wait. It is allowed once every mean lies _EARLY_Z
    errors above 0.
    """
    found = late_tally(samples)
    if rule is ThresholdRule.MINIMUM:
        return found.kept < found.count
    if rule is ThresholdRule.LOWER_BOUND:
        return is_settled(found.kept, found.count, planned)
    if found.count < _FEWEST_FOR_MEAN // 2:
        return False
    errors = [_mean_and_error(*sums, found.count) for sums in found.sums.values()]
    if found.count < _FEWEST_FOR_MEAN:
        return any(mean < -_Z * error for mean, error in errors)
    share = found.count / planned
    least = _Z * math.sqrt(share) * (1.0 - math.sqrt(1.0 - share))
    return all(mean > _EARLY_Z * error for mean, error in errors) or any(mean < least * error for mean, error in errors)


def _sums(margins: Sequence[float]) -> tuple[float, float]:
    return math.fsum(margins), math.fsum(margin * margin for margin in margins)


def lowest(samples: Iterable[ImageSample], alpha: float, rule: ThresholdRule) -> float | None:
    """Return the lowest similarity at and above which the samples satisfy the rule; None if there is none."""
    found = (similarity for similarity, seen in _from_the_top(samples, alpha) if seen.allows(rule))
    return min(found, default=None)


def _from_the_top(samples: Iterable[ImageSample], alpha: float) -> Iterator[tuple[float, Tally]]:
    """Yield each similarity, descending, with the tally of all samples from there on."""
    ordered = sorted(samples, key=lambda sample: -sample.similarity)
    count, kept, total, squares = 0, 0, 0.0, 0.0
    for similarity, group in groupby(ordered, key=lambda sample: sample.similarity):
        found = tally(list(group), alpha)
        count, kept = count + found.count, kept + found.kept
        total, squares = total + found.sums["quality"][0], squares + found.sums["quality"][1]
        yield similarity, Tally(count, kept, {"quality": (total, squares)})


def before_luck(holds: Iterable[tuple[Place, bool]]) -> list[Place]:
    """Return the places that hold, in their order, up to the first that does not."""
    return [place for place, _ in takewhile(lambda one: one[1], holds)]


def without_luck(holds: Mapping[tuple[Begin, int], bool]) -> frozenset[tuple[Begin, int]]:
    """Return the pairs (beginning, steps taken) that hold, per beginning down to the first number that does not."""
    found: set[tuple[Begin, int]] = set()
    for begin in {begin for begin, _ in holds}:
        counts = sorted((taken for begun, taken in holds if begun == begin), reverse=True)
        found |= {(begin, taken) for taken in before_luck((taken, holds[begin, taken]) for taken in counts)}
    return frozenset(found)


def latest_alike_steps(by_steps: Mapping[int, Sequence[float]]) -> int:
    """Return Katz's K: the most of the tried steps over which the latents stay similar in the mean, by cosines."""
    holds = ((steps, fmean(by_steps[steps]) >= LEAST_COSINE) for steps in sorted(by_steps))
    return max(before_luck(holds), default=0)


def strictest(by_scorer: Sequence[Sequence[ImageSample]]) -> list[ImageSample]:
    """Return for each image the smallest share of the full quality found by any scorer, as a sample out of 1.

    With one scorer its samples are returned unchanged. An image without full quality can lose none.
    """
    if len(by_scorer) == 1:
        return list(by_scorer[0])
    return [ImageSample(min(map(_share, samples)), 1.0) for samples in zip(*by_scorer, strict=True)]


def _share(sample: ImageSample) -> float:
    if math.isnan(sample.quality) or math.isnan(sample.full_quality):
        return 0.0
    return sample.quality / sample.full_quality if sample.full_quality > 0.0 else 1.0


def mean_share(samples: Sequence[ImageSample]) -> float:
    """Return the share of the full quality that remains in the mean; 0 if there was none."""
    full = fmean(sample.full_quality for sample in samples)
    return fmean(sample.quality for sample in samples) / full if full > 0.0 else 0.0


def mean_is_surely(margins: Sequence[float], *, strictly: bool = False) -> bool:
    """Return whether the lower bound of the mean of `margins`, at CONFIDENCE, is at least 0, or above it if `strictly`.

    Fewer than 30 margins are never sure.
    """
    return _mean_holds(*_sums(margins), len(margins), strictly=strictly)


def _mean_holds(total: float, squares: float, count: int, *, strictly: bool = False) -> bool:
    if count < _FEWEST_FOR_MEAN:
        return False
    mean, error = _mean_and_error(total, squares, count)
    return mean > _Z * error if strictly else mean >= _Z * error


def _mean_and_error(total: float, squares: float, count: int) -> tuple[float, float]:
    """Return a mean with its standard error; both need two samples or more."""
    mean = total / count
    variance = max(squares / count - mean * mean, 0.0) * count / (count - 1)
    return mean, math.sqrt(variance / count)


def share_is_surely(kept: int, count: int, required_share: float) -> bool:
    """Return whether the lower bound of a share, at CONFIDENCE, is at least `required_share` after `kept` of `count`.

    By Clopper and Pearson: a smaller share would give as few failures at most once in twenty times. Raises ValueError
    unless `required_share` is above 0 and below 1.
    """
    if not 0 < required_share < 1:
        raise ValueError(f"required_share must lie between 0 and 1, got {required_share}")
    failures = count - kept
    if count == 0 or failures > count * (1.0 - required_share):
        return False
    return _as_few_by_chance(failures, count, required_share) <= 1.0 - CONFIDENCE


def _as_few_by_chance(failures: int, count: int, share: float) -> float:
    """Return the probability of at most that many failures if each of `count` images is kept with that share."""
    hit, miss = math.log(share), math.log1p(-share)
    all_ways = math.lgamma(count + 1)
    ways = (
        math.exp(all_ways - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * miss + (count - k) * hit)
        for k in range(failures + 1)
    )
    return math.fsum(ways)


def is_settled(kept: int, count: int, planned: int) -> bool:
    """Return whether the first `count` of `planned` samples settle LOWER_BOUND's verdict, which is then `allows`'s.

    It is refused once even successes alone could not reach it. It is allowed once the likelihood ratio of a share of
    0.998 against REQUIRED_SHARE is large (Wald 1945; Ville's inequality: at most 1 in r such sequences reaches r by
    chance). Early permissions may err as often as the last test leaves of 1 - CONFIDENCE, so that both together err at
    most that often.
    """
    failures = count - kept
    if not share_is_surely(planned - failures, planned, REQUIRED_SHARE):
        return True
    ratio = kept * math.log(_USUAL_SHARE / REQUIRED_SHARE)
    ratio += failures * math.log((1.0 - _USUAL_SHARE) / (1.0 - REQUIRED_SHARE))
    return ratio >= _early_ratio(planned)


@cache
def _early_ratio(planned: int) -> float:
    """Return the logarithm of the likelihood ratio that allows early; infinity if the last test leaves no error."""
    most = max((k for k in range(planned) if share_is_surely(planned - k, planned, REQUIRED_SHARE)), default=-1)
    left = 1.0 - CONFIDENCE - (_as_few_by_chance(most, planned, REQUIRED_SHARE) if most >= 0 else 0.0)
    return -math.log(left) if left > 0.0 else math.inf
