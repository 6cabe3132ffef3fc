"""Hold the quality of images and of confidences that other benchmarks measured, for simulations to draw from."""

import math
from functools import cache
from statistics import NormalDist

import numpy as np

# router, by another scorer: AUROC of the prompt-aware discriminator and of DiffServe's; by another encoder
AUROC, AUROC_BY_ENCODER, AUROC_DIFFSERVE = 0.84, 0.70, 0.53
# router: the share of prompts on which the light image is as good as the heavy one; the standard deviation of the share
# of quality that the light image keeps
AS_GOOD, LIGHT_DEVIATION = 0.29, 0.19
# selector_profile, images by the rule of the mean, as selected: quality that hits keep, and its standard deviation
HIT_MEAN, HIT_DEVIATION = 0.935, 0.121
# the same by the rule of the lower bound, and MoDM's published value
HIT_BOUND, HIT_MODM = 0.996, 0.997


@cache
def correlation_of(auroc: float, as_good: float = AS_GOOD, points: int = 200) -> float:
    """Return the correlation of quality's and confidence's normal scores at which confidence separates the best
    `as_good` of the images from the others with that AUROC (0.5..1)."""
    quantiles = (np.arange(points) + 0.5) / points
    scores = np.array([NormalDist().inv_cdf(float(one)) for one in quantiles])
    split = NormalDist().inv_cdf(1.0 - as_good)
    differences = scores[scores > split][:, None] - scores[scores <= split][None, :]

    def found(correlation: float) -> float:
        spread = math.sqrt(2.0 * (1.0 - correlation**2))
        above = [0.5 * (1.0 + math.erf(correlation * d / spread / math.sqrt(2.0))) for d in differences.ravel()]
        return float(np.mean(above))

    low, high = 0.0, 0.9999
    if auroc <= 0.5:
        return 0.0
    for _ in range(24):
        middle = (low + high) / 2.0
        low, high = (middle, high) if found(middle) < auroc else (low, middle)
    return round(low, 4)


def own_deviation(spread: float, deviation: float = LIGHT_DEVIATION) -> float:
    """Return the standard deviation of single images for a quality that is uniform over `spread`."""
    return math.sqrt(max(deviation**2 - spread**2 / 12.0, 0.0))
