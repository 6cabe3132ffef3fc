"""When requests come: arrival processes and traces, in ascending seconds from the run's beginning.

A Poisson process of a changing rate is one of rate 1 with its time warped (inversion: Çinlar 1975). Traces are made
denser by superposing displaced copies and thinner by leaving requests out at random: under both a Poisson process stays
one, and the curve of the rate keeps its shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pentimento.domain.errors import InvalidArgument

Times = npt.NDArray[np.float64]

# More requests than any machine has the memory for.
MOST_EXPECTED = 100_000_000


@dataclass(frozen=True)
class Segment:
    """A stretch of constant rate (requests a second)."""

    duration_s: float
    rate: float


def poisson_times(rate: float, duration_s: float, rng: np.random.Generator) -> Times:
    return segment_times([Segment(duration_s, rate)], rng)


def segment_times(segments: Sequence[Segment], rng: np.random.Generator) -> Times:
    """Return Poisson arrivals at the rates of consecutive segments."""
    for segment in segments:
        _require(0 < segment.duration_s < np.inf, "duration_s", f"must be above 0 s, got {segment.duration_s}")
        _require(0 <= segment.rate < np.inf, "rate", f"must be at least 0, got {segment.rate}")
    ends = np.cumsum([0.0, *(segment.duration_s for segment in segments)])
    expected = np.cumsum([0.0, *(segment.duration_s * segment.rate for segment in segments)])
    most = f"must be that of at most {MOST_EXPECTED:,} requests in all, got one of {expected[-1]:.3g}"
    _require(expected[-1] <= MOST_EXPECTED, "rate", most)
    count = rng.poisson(expected[-1])
    # Given their number, a Poisson process's points are uniform in operational time.
    operational = np.sort(rng.uniform(0.0, expected[-1], count))
    return np.asarray(np.interp(operational, expected, ends), np.float64)


def scaled(times_s: Sequence[float] | Times, scale: float, rng: np.random.Generator, jitter_s: float = 10.0) -> Times:
    """`scale` times the requests in the same time, the curve of the rate keeping its shape.

    Each request comes floor(scale) times and once more with the remaining probability; all copies but the first are
    displaced by up to `jitter_s` either way, within the trace: below that time the copies are as good as independent,
    above it the curve is kept. At scale 1 it is the trace itself.
    """
    _require(0 < scale < np.inf, "scale", f"must be above 0 and finite, got {scale}")
    _require(0 <= jitter_s < np.inf, "jitter_s", f"must be at least 0 s, got {jitter_s}")
    trace = ascending(times_s)
    copies = np.full(len(trace), int(scale)) + (rng.uniform(size=len(trace)) < scale - int(scale))
    repeated = np.repeat(trace, copies)
    firsts = np.cumsum(copies) - copies
    displaced = np.ones(len(repeated), bool)
    displaced[firsts[copies > 0]] = False
    moved = repeated + np.where(displaced, rng.uniform(-jitter_s, jitter_s, len(repeated)), 0.0)
    return np.sort(_reflected(moved, trace[0], trace[-1])) if len(trace) else moved


def compressed(times_s: Sequence[float] | Times, factor: float) -> Times:
    """The same requests `factor` times as fast, from second 0 on."""
    _require(0 < factor < np.inf, "factor", f"must be above 0 and finite, got {factor}")
    trace = ascending(times_s)
    return (trace - trace[0]) / factor if len(trace) else trace


def rate_curve(times_s: Sequence[float] | Times, window_s: float) -> Times:
    """Requests a second in each window; the last one may reach beyond the trace."""
    _require(0 < window_s < np.inf, "window_s", f"must be above 0 s, got {window_s}")
    trace = ascending(times_s)
    if not len(trace):
        return np.zeros(0)
    windows = int((trace[-1] - trace[0]) // window_s) + 1
    counts, _ = np.histogram(trace - trace[0], bins=windows, range=(0.0, windows * window_s))
    return counts / window_s


def fitted_segments(
    times_s: Sequence[float] | Times, window_s: float, lowest: float, highest: float
) -> tuple[Segment, ...]:
    """The trace's curve stretched to run from `lowest` to `highest` requests a second (DiffServe's "4to32qps")."""
    _require(0 <= lowest <= highest < np.inf, "lowest", f"must be between 0 and highest, got {lowest} and {highest}")
    curve = rate_curve(times_s, window_s)
    if not len(curve):
        return ()
    spread = float(np.ptp(curve))
    shares = (curve - curve.min()) / spread if spread else np.zeros_like(curve)
    return tuple(Segment(window_s, float(lowest + share * (highest - lowest))) for share in shares)


def ascending(times_s: Sequence[float] | Times) -> Times:
    """As an array; InvalidArgument where a time is not finite, negative, or before the one ahead of it."""
    trace = np.asarray(times_s, np.float64)
    bad = ~np.isfinite(trace) | (trace < 0)
    bad[1:] |= np.diff(trace) < 0
    if bad.any():
        index = int(np.argmax(bad))
        raise InvalidArgument.of(f"times_s[{index}]", f"must be finite, at least 0 and ascending, got {trace[index]}")
    return trace


def _reflected(times_s: Times, first_s: float, last_s: float) -> Times:
    """Mirror values beyond an end at it: clipping would pile requests up there."""
    inside = np.where(times_s < first_s, 2 * first_s - times_s, times_s)
    inside = np.where(inside > last_s, 2 * last_s - inside, inside)
    return np.asarray(np.clip(inside, first_s, last_s), np.float64)


def _require(condition: bool, name: str, limit: str) -> None:
    if not condition:
        raise InvalidArgument.of(name, limit)
