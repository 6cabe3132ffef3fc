"""Hold shapes of load over time: shares of the way from the low to the peak, in equal segments."""

from collections.abc import Mapping

import numpy as np

from benchmarks.paper_constants import AZURE_SHAPE

Shape = tuple[float, ...]

SHAPES: Mapping[str, Shape] = {
    "azure": AZURE_SHAPE,
    "rise and fall": tuple(1 - abs(1 - 2 * index / 27) for index in range(28)),
    "steps": (0.0,) * 7 + (1.0,) * 7 + (0.0,) * 7 + (1.0,) * 7,
    "two peaks": tuple(max(0.0, float(np.sin(4 * np.pi * index / 27))) for index in range(28)),
    "sudden peak": (0.1,) * 10 + (1.0,) * 6 + (0.4,) * 12,
}
# the most different ones: a day, jumps that last, and a single peak
THREE: Mapping[str, Shape] = {name: SHAPES[name] for name in ("azure", "steps", "sudden peak")}
