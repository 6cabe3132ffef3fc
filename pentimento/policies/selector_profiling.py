"""From measured reuse to thresholds: for each K the lowest similarity from which on reuse keeps the quality asked for.

A sample is one picture that was painted from a cached start with K of N steps skipped, and what it is compared with.
Three rules read the same samples:

- MINIMUM, NIRVANA's Algorithm 1 as section 5.3.1 tells it: from that similarity on *every* sample keeps alpha. The
  algorithm's line 3 alone would take the least similar sample that keeps it, whatever happens above; it is not meant.
- LOWER_BOUND, ours: the lower 95 % bound (Clopper and Pearson, 1934, one-sided) of the share of samples from that
  similarity on that keep alpha is at least 0.95. It bears single failures, and asks for 59 samples at the least.
- MEAN, MoDM's Figure 5a as section 5.2 reads it, a curve of means: the lower 95 % bound of the mean of
  (quality - alpha * quality from scratch) is not below 0. It says nothing of any single picture.

No rule goes below the least similar sample: where nothing was measured nothing is promised.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

REQUIRED_SHARE = 0.95
CONFIDENCE = 0.95
# One-sided 95 % of the normal distribution, and from how many samples on a mean is taken to be distributed like it.
_Z = 1.6448536269514722
_FEWEST_FOR_MEAN = 30


class ThresholdRule(Enum):
    """How samples become a threshold."""

    MINIMUM = "minimum"
    LOWER_BOUND = "lower_bound"
    MEAN = "mean"


class RuleChoice(Enum):
    """By which rule a deployment reads its profiles: one for all of them, or the one that each names."""

    PROFILE = "profile"
    MINIMUM = "minimum"
    LOWER_BOUND = "lower_bound"
    MEAN = "mean"

    @property
    def rule(self) -> ThresholdRule | None:
        """The rule for all profiles; None for each profile's own."""
        return None if self is RuleChoice.PROFILE else ThresholdRule(self.value)


@dataclass(frozen=True)
class ReuseSample:
    """One reuse: how alike donor and prompt are (cosine), the quality of the picture that came of it, and that of the
    picture it stands for, painted from scratch."""

    similarity: float
    quality: float
    scratch_quality: float

    def keeps(self, alpha: float) -> bool:
        """Return whether the picture has at least `alpha` (0..1) of the quality from scratch."""
        return self.quality >= alpha * self.scratch_quality


@dataclass(frozen=True)
class StepThresholds:
    """What was found for one K: by each rule the lowest similarity, None where no similarity will do."""

    skipped_steps: int
    sample_count: int
    minimum: float | None
    lower_bound: float | None
    mean: float | None

    def by(self, rule: ThresholdRule) -> float | None:
        """Return the threshold of that rule."""
        return {
            ThresholdRule.MINIMUM: self.minimum,
            ThresholdRule.LOWER_BOUND: self.lower_bound,
            ThresholdRule.MEAN: self.mean,
        }[rule]


def profile_thresholds(samples: Mapping[int, Sequence[ReuseSample]], alpha: float) -> tuple[StepThresholds, ...]:
    """Return the thresholds of every K, ascending; `samples` are by K. Raises ValueError for an alpha outside 0..1 or
    a K without samples."""
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha must be above 0 and at most 1, got {alpha}")
    return tuple(_of_step(step, samples[step], alpha) for step in sorted(samples))


def _of_step(step: int, samples: Sequence[ReuseSample], alpha: float) -> StepThresholds:
    if not samples:
        raise ValueError(f"no samples at step {step}")
    return StepThresholds(
        step,
        len(samples),
        lowest_similarity(samples, alpha, ThresholdRule.MINIMUM),
        lowest_similarity(samples, alpha, ThresholdRule.LOWER_BOUND),
        lowest_similarity(samples, alpha, ThresholdRule.MEAN),
    )


def lowest_similarity(samples: Sequence[ReuseSample], alpha: float, rule: ThresholdRule) -> float | None:
    """Return the lowest similarity of a sample from which on the samples satisfy the rule; None where there is none."""
    holds = _HOLDS[rule]
    return min((seen.similarity for seen in _from_the_top(samples, alpha) if holds(seen)), default=None)


@dataclass(frozen=True)
class _SeenSamples:
    """All samples of at least this similarity: how many, how many keep alpha, and the sums of (quality - alpha *
    scratch) and of its squares."""

    similarity: float
    count: int
    kept: int
    total: float
    squares: float


def _from_the_top(samples: Iterable[ReuseSample], alpha: float) -> Iterator[_SeenSamples]:
    """Yield what has been seen down to each similarity that occurs; samples that are equally alike come together."""
    ordered = sorted(samples, key=lambda sample: -sample.similarity)
    seen = _SeenSamples(1.0, 0, 0, 0.0, 0.0)
    for similarity, group in groupby(ordered, key=lambda sample: sample.similarity):
        alike = list(group)
        margins = [sample.quality - alpha * sample.scratch_quality for sample in alike]
        seen = _SeenSamples(
            similarity,
            seen.count + len(alike),
            seen.kept + sum(sample.keeps(alpha) for sample in alike),
            seen.total + math.fsum(margins),
            seen.squares + math.fsum(margin * margin for margin in margins),
        )
        yield seen


def _all_keep(seen: _SeenSamples) -> bool:
    return seen.kept == seen.count


def _most_keep(seen: _SeenSamples) -> bool:
    return share_is_surely(seen.kept, seen.count, REQUIRED_SHARE)


def _mean_keeps(seen: _SeenSamples) -> bool:
    if seen.count < _FEWEST_FOR_MEAN:
        return False
    mean = seen.total / seen.count
    return mean >= _mean_error(mean, seen.squares, seen.count)


def mean_is_surely(margins: Sequence[float], *, strictly: bool = False) -> bool:
    """Return whether the lower bound, at CONFIDENCE, of the mean of `margins` is at least 0, or, `strictly`, above it;
    of fewer than 30 nothing is sure."""
    count = len(margins)
    if count < _FEWEST_FOR_MEAN:
        return False
    mean = math.fsum(margins) / count
    error = _mean_error(mean, math.fsum(margin * margin for margin in margins), count)
    return mean > error if strictly else mean >= error


def _mean_error(mean: float, squares: float, count: int) -> float:
    """Return how far the lower bound of a mean is below it."""
    variance = max(squares / count - mean * mean, 0.0) * count / (count - 1)
    return _Z * math.sqrt(variance / count)


_HOLDS: Mapping[ThresholdRule, Callable[[_SeenSamples], bool]] = {
    ThresholdRule.MINIMUM: _all_keep,
    ThresholdRule.LOWER_BOUND: _most_keep,
    ThresholdRule.MEAN: _mean_keeps,
}


def share_is_surely(kept: int, count: int, required_share: float) -> bool:
    """Return whether the lower bound, at CONFIDENCE, of a share is at least `required_share` (0..1 without the ends)
    after `kept` of `count` (Clopper and Pearson): whether a share that large would give so few failures at most once
    in twenty times."""
    if not 0 < required_share < 1:
        raise ValueError(f"required_share must lie between 0 and 1, got {required_share}")
    failures = count - kept
    if count == 0 or failures > count * (1.0 - required_share):
        return False
    hit, miss = math.log(required_share), math.log1p(-required_share)
    all_ways = math.lgamma(count + 1)
    ways = (
        math.exp(all_ways - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * miss + (count - k) * hit)
        for k in range(failures + 1)
    )
    return math.fsum(ways) <= 1.0 - CONFIDENCE
