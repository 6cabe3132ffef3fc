"""Compute statistics of samples and their confidence intervals at 95 %."""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import TypeVar

Sample = TypeVar("Sample")

RESAMPLES = 2_000
CONFIDENCE = 0.95
BOOTSTRAP = "bootstrap, expanded percentiles"
# Student's t at 97.5 %, by degrees of freedom from 1
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def bootstrap_interval(
    samples: Sequence[Sample],
    statistic: Callable[[Sequence[Sample]], float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile bootstrap at 95 % of `statistic` (Efron 1979), resampling with replacement, reproducibly.

    Its percentiles are wider the fewer samples there are ("expanded", Hesterberg 2015). A paired comparison passes its
    pairs as the samples, so that the pairing survives every resample.
    """
    if not samples:
        raise ValueError("a bootstrap needs at least one sample")
    generator = random.Random(seed)
    draws = sorted(statistic(generator.choices(samples, k=len(samples))) for _ in range(resamples))
    tail = _tail(len(samples))
    return quantile(draws, tail), quantile(draws, 1.0 - tail)


def ratio_interval(
    numerators: Sequence[float],
    denominators: Sequence[float],
    statistic: Callable[[Sequence[float]], float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile bootstrap at 95 %, as above, of a statistic of the numerators ÷ that of the denominators,
    resampled separately."""
    generator = random.Random(seed)

    def draw(samples: Sequence[float]) -> float:
        return statistic(generator.choices(samples, k=len(samples)))

    draws = sorted(draw(numerators) / draw(denominators) for _ in range(resamples))
    tail = _tail(min(len(numerators), len(denominators)))
    return quantile(draws, tail), quantile(draws, 1.0 - tail)


def _tail(count: int) -> float:
    """Return the share of resamples outside on either side: a bootstrap underestimates the variance of few samples, and
    uses normal values for Student's."""
    if count < 2:
        return (1.0 - CONFIDENCE) / 2.0
    return NormalDist().cdf(-math.sqrt(count / (count - 1)) * _student_t(count - 1))


def _student_t(free: int) -> float:
    """Return t at 97.5 %; beyond the table by Fisher's expansion around the normal value."""
    if free <= len(_T):
        return _T[free - 1]
    z = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0)
    return z + (z**3 + z) / (4 * free)


def percentile(share: float) -> Callable[[Sequence[float]], float]:
    """Return the statistic that interpolates a share's quantile, as 0.99."""
    return lambda samples: quantile(sorted(samples), share)


def ratio_of_sums(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the sum of the firsts ÷ that of the seconds."""
    return sum(ours for ours, _ in pairs) / sum(theirs for _, theirs in pairs)


def median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the median of the pairs' ratios."""
    return statistics.median(ours / theirs for ours, theirs in pairs)


def ratio_of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the median of the firsts ÷ that of the seconds."""
    return statistics.median(ours for ours, _ in pairs) / statistics.median(theirs for _, theirs in pairs)


def paired_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the geometric mean of the pairs' ratios."""
    return math.exp(math.fsum(math.log(ours / theirs) for ours, theirs in pairs) / len(pairs))


def paired_ratio_interval(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the interval of `paired_ratio` at 95 % for 2 to 16 pairs by Student's t over the logarithms, since a
    bootstrap of so few is too narrow."""
    logs = [math.log(ours / theirs) for ours, theirs in pairs]
    half = _T[len(logs) - 2] * statistics.stdev(logs) / math.sqrt(len(logs))
    middle = math.fsum(logs) / len(logs)
    return math.exp(middle - half), math.exp(middle + half)


def slope_with_interval(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the slope of y over x by least squares, and its bounds at 95 % by Student's t; for 3 to 17 points."""
    slope, intercept = statistics.linear_regression(*zip(*points, strict=True))
    middle = statistics.fmean(x for x, _ in points)
    spread = math.fsum((x - middle) ** 2 for x, _ in points)
    left = math.fsum((y - intercept - slope * x) ** 2 for x, y in points)
    free = len(points) - 2
    half = _T[free - 1] * math.sqrt(left / free / spread)
    return slope, slope - half, slope + half


def quantile(ordered: Sequence[float], share: float) -> float:
    """Interpolate linearly between the order statistics of an ascending sequence."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def binomial_interval(events: int, trials: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact interval of a probability (Clopper and Pearson 1934): with 0 events a bootstrap would have no
    width."""
    if not 0 <= events <= trials or trials == 0:
        raise ValueError(f"events must be between 0 and trials > 0, got {events} of {trials}")
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if events == 0 else bisect(lambda p: 1.0 - binomial_cdf(events - 1, trials, p) - tail)
    high = 1.0 if events == trials else bisect(lambda p: tail - binomial_cdf(events, trials, p))
    return low, high


def binomial_cdf(events: int, trials: int, probability: float) -> float:
    """Return the distribution function for `probability` strictly between 0 and 1. By logarithms: coefficients of
    thousands of trials overflow floats."""
    hit, miss = math.log(probability), math.log1p(-probability)
    all_ways = math.lgamma(trials + 1)
    terms = (
        math.exp(all_ways - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * hit + (trials - k) * miss)
        for k in range(events + 1)
    )
    return math.fsum(terms)


def bisect(rising: Callable[[float], float]) -> float:
    """Return the root in 0..1 of a function that rises through zero."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rising(middle) < 0.0 else (low, middle)
    return (low + high) / 2.0
