"""Draw measurements from costs, and scale costs to slower devices."""

import math
import random

from pentimento.profiles.costs import Cost


def draw(cost: Cost, source: random.Random, count: int = 1) -> float:
    """Draw the seconds of one measurement, or the mean of `count` independent ones.

    They are log-normal with the cost's mean and variance, so never below 0.
    """
    if cost.variance_s2 <= 0.0 or cost.mean_s <= 0.0:
        return cost.mean_s
    variance = math.log1p(cost.variance_s2 / count / (cost.mean_s * cost.mean_s))
    return source.lognormvariate(math.log(cost.mean_s) - variance / 2.0, math.sqrt(variance))


def slower(cost: Cost, factor: float) -> Cost:
    """Return the cost on a device that takes `factor` times as long."""
    return Cost(cost.mean_s * factor, cost.variance_s2 * factor * factor, cost.sample_count)


def added(one: Cost, other: Cost) -> Cost:
    """Return the cost of both in sequence."""
    samples = min(one.sample_count, other.sample_count)
    return Cost(one.mean_s + other.mean_s, one.variance_s2 + other.variance_s2, samples)
