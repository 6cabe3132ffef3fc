"""Read the time that a virtual machine's host took from runnable work ("steal" of /proc/stat, proc(5)). It slows every
busy process by the same factor.
"""

import math
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

STAT = Path("/proc/stat")
SAMPLE_S = 0.25
LEAST_LEFT = 0.05


@dataclass(frozen=True)
class WhatIsLeft:
    """Give a device's speed over a run (a `SpeedCourse`): the share that the host leaves by period, the last one
    continuing."""

    shares: tuple[float, ...]
    period_s: float

    def speeds(self, source: random.Random) -> Iterator[tuple[float, float]]:
        yield from ((share, self.period_s) for share in self.shares[:-1])
        yield self.shares[-1], math.inf


class StolenTime:
    """Sample the stolen time on a thread, from `with` on; 0 if the kernel does not count it."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stolen-time", daemon=True)

    def __enter__(self) -> Self:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def left(self, from_s: float, to_s: float, period_s: float = 2 * SAMPLE_S) -> WhatIsLeft:
        """Return the remaining share between two times of `time.monotonic`."""
        edges = np.arange(from_s, to_s + period_s, period_s)
        at, busy, stolen = np.array(self._samples).T
        ran, kept = np.diff(np.interp(edges, at, busy)), np.diff(np.interp(edges, at, stolen))
        lost: NDArray[np.float64] = kept / np.maximum(ran + kept, 1e-9)
        return WhatIsLeft(tuple(np.maximum(1.0 - lost, LEAST_LEFT).tolist()), period_s)

    def share(self) -> float:
        """Return the stolen share of busy and runnable time so far."""
        (_, busy, stolen), (_, busy_now, stolen_now) = self._samples[0], self._samples[-1]
        return (stolen_now - stolen) / max(busy_now - busy + stolen_now - stolen, 1e-9)

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        counts = busy_and_stolen(STAT.read_text()) if STAT.exists() else (0.0, 0.0)
        self._samples.append((time.monotonic(), *counts))


def busy_and_stolen(stat: str) -> tuple[float, float]:
    """Return ticks of all processors since the machine started."""
    user, nice, system, _, _, interrupts, soft_interrupts, stolen = map(float, stat.split(maxsplit=9)[1:9])
    return user + nice + system + interrupts + soft_interrupts, stolen
