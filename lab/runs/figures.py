"""Figures of a run: pure functions of its records."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.runs.record import Outcome, RequestRecord, StartKind
from pentimento.domain.errors import InvalidArgument


@dataclass(frozen=True)
class Spread:
    """Mean and percentiles of `count` values (linear between order statistics); NaN without values."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        if not values:
            return Spread(0, math.nan, math.nan, math.nan, math.nan)
        p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
        return Spread(len(values), float(np.mean(values)), p50, p95, p99)


@dataclass(frozen=True)
class Attainment:
    """How a class of requests fared. A violation is one that was late, dropped, rejected or failed; requests that
    their clients cancelled count neither way."""

    counts: Mapping[Outcome, int]
    latency_s: Spread

    @staticmethod
    def of(records: Iterable[RequestRecord]) -> "Attainment":
        known = list(records)
        counts = {outcome: 0 for outcome in Outcome}
        for record in known:
            counts[record.outcome] += 1
        return Attainment(counts, Spread.of([record.latency_s for record in known if record.outcome.answered]))

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def counted(self) -> int:
        return self.total - self.counts[Outcome.CANCELLED]

    @property
    def violations(self) -> int:
        return sum(count for outcome, count in self.counts.items() if outcome.violation)

    @property
    def violation_share(self) -> float:
        return self.violations / self.counted if self.counted else math.nan

    @property
    def slo_attainment(self) -> float:
        return 1.0 - self.violation_share


@dataclass(frozen=True)
class StageShare:
    """A stage over the answered requests that went through it: seconds of one stay, and its share of all their time."""

    name: str
    seconds: Spread
    began_s: float
    share: float


@dataclass(frozen=True)
class Window:
    """`from_s` to `from_s + length_s`. Arrivals and violations go by when a request came, answers by when it ended."""

    from_s: float
    length_s: float
    arrived: int
    answered: int
    in_time: int
    violation_share: float
    quality: float


def waterfall(records: Iterable[RequestRecord]) -> tuple[StageShare, ...]:
    """Return stages in the order of their mean begin, in seconds from the arrival (`began_s`). A repeated stage is
    summed up; unclaimed time is the stage "other"."""
    seconds: dict[str, list[float]] = defaultdict(list)
    began: dict[str, list[float]] = defaultdict(list)
    total = 0.0
    for record in records:
        if not record.outcome.answered or not record.stages:
            continue
        total += record.latency_s
        for name, spent in _spent(record).items():
            seconds[name].append(spent)
        for stage in record.stages:
            began[stage.name].append(stage.began_s - record.arrived_s)
    shares = [
        StageShare(name, Spread.of(spent), float(np.mean(began.get(name, [math.inf]))), sum(spent) / total)
        for name, spent in seconds.items()
        if total > 0
    ]
    return tuple(sorted(shares, key=lambda share: (share.began_s, share.name)))


def _spent(record: RequestRecord) -> dict[str, float]:
    spent: dict[str, float] = defaultdict(float)
    for stage in record.stages:
        spent[stage.name] += stage.ended_s - stage.began_s
    spent["other"] = max(0.0, record.latency_s - _covered(record))
    return spent


def _covered(record: RequestRecord) -> float:
    """Return the seconds during at least one stage; stages may overlap."""
    covered, until = 0.0, -math.inf
    for stage in sorted(record.stages, key=lambda stage: stage.began_s):
        covered += max(0.0, stage.ended_s - max(stage.began_s, until))
        until = max(until, stage.ended_s)
    return covered


def windows(records: Sequence[RequestRecord], window_s: float) -> tuple[Window, ...]:
    """Throughput, violations and quality over time, from second 0 to the last end."""
    if not window_s > 0:
        raise InvalidArgument.of("window_s", f"must be above 0 s, got {window_s}")
    last_s = max((record.ended_s for record in records), default=-1.0)
    # A run that ends with its last window does not open another one for that instant.
    count = max(1, math.ceil(last_s / window_s - 1e-9)) if last_s >= 0 else 0
    came: list[list[RequestRecord]] = [[] for _ in range(count)]
    ended: list[list[RequestRecord]] = [[] for _ in range(count)]
    for record in records:
        came[_index(record.arrived_s, window_s, count)].append(record)
        ended[_index(record.ended_s, window_s, count)].append(record)
    return tuple(_window(index * window_s, window_s, came[index], ended[index]) for index in range(count))


def _index(at_s: float, window_s: float, count: int) -> int:
    return min(max(0, int(at_s // window_s)), count - 1)


def _window(from_s: float, length_s: float, came: list[RequestRecord], ended: list[RequestRecord]) -> Window:
    return Window(
        from_s,
        length_s,
        arrived=len(came),
        answered=sum(record.outcome.answered for record in ended),
        in_time=sum(record.outcome is Outcome.COMPLETED for record in ended),
        violation_share=Attainment.of(came).violation_share,
        quality=mean_quality(ended),
    )


def mean_quality(records: Iterable[RequestRecord]) -> float:
    """Return the mean of the known qualities of answered requests; NaN without any."""
    known = [record.quality for record in records if record.outcome.answered and record.quality is not None]
    return float(np.mean(known)) if known else math.nan


def steps_saved(records: Iterable[RequestRecord]) -> float:
    """Share of the denoising steps of answered requests that a cache spared; NaN without any."""
    answered = [record for record in records if record.outcome.answered and record.steps > 0]
    asked = sum(record.steps for record in answered)
    return sum(record.start_step for record in answered) / asked if asked else math.nan


def start_shares(records: Iterable[RequestRecord]) -> dict[StartKind, float]:
    """Return the shares of answered requests by kind of start."""
    answered = [record for record in records if record.outcome.answered]
    return {
        kind: sum(record.start is kind for record in answered) / len(answered) if answered else math.nan
        for kind in StartKind
    }


def jain_index(values: Sequence[float]) -> float:
    """(Σx)² / (n·Σx²), from 1/n to 1 (Jain, Chiu and Hawe 1984); NaN where all are 0."""
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else math.nan


def fair_shares(demands: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Return max-min fair shares: no tenant gets more than it asked for, and the others split the rest evenly."""
    shares: dict[str, float] = {}
    left = min(capacity, sum(demands.values()))
    for position, (name, demand) in enumerate(sorted(demands.items(), key=lambda item: item[1])):
        shares[name] = min(demand, left / (len(demands) - position))
        left -= shares[name]
    return shares


def tenant_fairness(records: Iterable[RequestRecord]) -> float:
    """Return Jain's index of each tenant's timely requests over its max-min fair share of all timely requests.

    It is 1 if a modest tenant gets all it asked for and a greedy one gets the rest.
    """
    asked: dict[str, float] = defaultdict(float)
    got: dict[str, float] = defaultdict(float)
    for record in records:
        asked[record.tenant] += record.outcome is not Outcome.CANCELLED
        got[record.tenant] += record.outcome is Outcome.COMPLETED
    fair = fair_shares(asked, sum(got.values()))
    return jain_index([got[tenant] / share for tenant, share in fair.items() if share > 0] or [0.0])
