"""Workloads by name: steady Poisson, a recorded trace, fluctuating load. The same seed gives the same workload.

`production.py` has the mix of base models and adapters.
"""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from lab.workloads.arrival import Workload
from lab.workloads.content import Content
from lab.workloads.times import Segment, Times, compressed, poisson_times, scaled, segment_times

# MoDM, Fig. 17 rises and falls between the ends of its Fig. 10: 6 to 26 requests a minute on 16 devices. The paper
# prints neither the times nor the levels in between, so these are ours.
MODM_FLUCTUATION = tuple(Segment(1200.0, rate / 60.0) for rate in (6, 14, 22, 26, 18, 10, 6, 18, 26, 14, 6))


def poisson(rate: float, duration_s: float, rng: np.random.Generator, content: Content | None = None) -> Workload:
    """`rate` requests a second on average for `duration_s` seconds."""
    made_by = {"builder": "poisson", "rate": rate, "duration_s": duration_s}
    return (content or Content()).fill("poisson", poisson_times(rate, duration_s, rng), rng, made_by)


def fluctuating(
    rng: np.random.Generator,
    content: Content | None = None,
    segments: Sequence[Segment] = MODM_FLUCTUATION,
) -> Workload:
    """Poisson arrivals at a rate that rises and falls (MoDM, A.3); `times.fitted_segments` scales a trace's curve."""
    made_by = {"builder": "fluctuating", "segments": [asdict(segment) for segment in segments]}
    return (content or Content()).fill("fluctuating", segment_times(segments, rng), rng, made_by)


def from_trace(
    times_s: Sequence[float] | Times,
    rng: np.random.Generator,
    content: Content | None = None,
    *,
    scale: float = 1.0,
    compress: float = 1.0,
    source: str = "",
) -> Workload:
    """A recorded trace from its first request on: played `compress` times as fast, then with `scale` times the requests
    at every moment. `source` names it; texts from another log than the times make the workload a composite one."""
    times = scaled(compressed(times_s, compress), scale, rng)
    asked = content or Content()
    made_by = {"builder": "from_trace", "times": source, "scale": scale, "compress": compress}
    return asked.fill("trace", times, rng, {**made_by, "composite": bool(source and set(asked.sources) - {source})})
