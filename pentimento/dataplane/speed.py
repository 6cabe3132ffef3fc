"""Estimate the seconds of a request in a pool, from its profile and the measured times of attempts."""

import math

from pentimento.dataplane.events import SpeedProfile

# Share of the newest attempt in a moving average.
NEWEST_SHARE = 0.2
_LARGEST_BATCH = 1024


class Speed:
    """Hold a pool's profiled and observed speed. `slowdown`: measured seconds for each profiled second or, without a
    profile, for each unit of work; None while neither is known. `spread`: mean deviation of single attempts from
    it."""

    def __init__(self, profile: SpeedProfile | None = None) -> None:
        """Start from a profile that passes `is_sane`, or from none."""
        self.profile = profile
        self._table = _by_batch(profile.seconds_per_work) if profile is not None else [1.0]
        self._fixed_s = profile.fixed_s if profile is not None else 0.0
        self.slowdown: float | None = 1.0 if profile is not None else None
        self.spread = 0.0

    def seconds_per_work(self, batch: int) -> float:
        """Return e(b) as profiled, for a `batch` of 1 or more; 1 without a profile."""
        return self._table[min(batch, len(self._table)) - 1]

    def crowded_s(self, load: int) -> float:
        """Return e(b) of a worker with `load` requests. Requests beyond the largest profiled batch wait, so that one
        more costs more than on an idle worker."""
        beyond = max(load / len(self._table), 1.0)
        return beyond * self.seconds_per_work(load)

    def nominal_s(self, work: float, batch: int) -> float:
        """Return the seconds that a request takes before `slowdown`."""
        return self._fixed_s + work * self.seconds_per_work(batch)

    def seconds(self, work: float, batch: int, slowdown: float | None = None, margin: float = 0.0) -> float | None:
        """Return the seconds of a request with that work in a batch of that size, plus `margin` spreads. Uses the
        worker's own slowdown if it has one; None if no speed is known."""
        slowdown = self.slowdown if slowdown is None else slowdown
        return None if slowdown is None else (slowdown + margin * self.spread) * self.nominal_s(work, batch)

    def throughput(self, batch: int) -> float:
        """Return the work a second of one worker with a full batch, before `slowdown`."""
        seconds = self.seconds_per_work(batch)
        return batch / seconds if seconds > 0.0 else 0.0

    def learn(self, ratio: float) -> None:
        """Move slowdown and spread towards an attempt's `ratio` of taken to nominal seconds."""
        if self.slowdown is not None:
            self.spread = averaged(self.spread, abs(ratio - self.slowdown))
        self.slowdown = averaged(self.slowdown, ratio)


def averaged(before: float | None, newest: float) -> float:
    """Return the moving average after `newest`; `newest` if it is the first value."""
    return newest if before is None else before + NEWEST_SHARE * (newest - before)


def is_sane(profile: SpeedProfile) -> bool:
    """Return whether the profile has ascending batch sizes and finite seconds."""
    sizes = [size for size, _ in profile.seconds_per_work]
    seconds = [*(value for _, value in profile.seconds_per_work), profile.fixed_s]
    ascending = all(1 <= size <= _LARGEST_BATCH for size in sizes) and sizes == sorted(set(sizes))
    return bool(sizes) and ascending and all(math.isfinite(value) and value >= 0.0 for value in seconds)


def _by_batch(measured: tuple[tuple[int, float], ...]) -> list[float]:
    """Return the seconds at batch sizes 1, 2, … up to the largest measured one."""
    (size, seconds), *others = measured
    table = [seconds] * size
    for larger, value in others:
        step = (value - table[-1]) / (larger - len(table))
        start = table[-1]
        table += [start + step * index for index in range(1, larger - len(table) + 1)]
    return table
