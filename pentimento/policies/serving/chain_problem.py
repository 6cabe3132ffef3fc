"""DiffServe's allocation problem (section 3.3) for a cascade of any length, solved by enumeration.

With two models it is the paper's: the largest share that goes on to the heavy model under the SLO and the devices. With
more, the sum over all models but the first of the share of requests that reach them is what is made as large as it can
be, which for two is the same.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pentimento.policies.serving.costs import BatchCost
from pentimento.policies.serving.settings import THRESHOLD_COUNT, DeferralCurve

# Combinations of thresholds, of all stages but the last two, that are tried for each choice of batch sizes.
_MOST_COMBINATIONS = 200
_GRID = tuple(index / (THRESHOLD_COUNT - 1) for index in range(THRESHOLD_COUNT))


@dataclass(frozen=True)
class ChainStage:
    """A model of the cascade: what it costs, and the seconds that a request waits for it."""

    costs: tuple[BatchCost, ...]
    wait_s: float = 0.0


@dataclass(frozen=True)
class ChainProblem:
    """`demand` in requests a second. `curves`: f(t) after each stage but the last; `discriminator_s` of one scoring."""

    demand: float
    device_count: int
    slo_s: float
    stages: tuple[ChainStage, ...]
    curves: tuple[DeferralCurve, ...]
    discriminator_s: float = 0.0


@dataclass(frozen=True)
class ChainSolution:
    """By stage: devices, batch size, the share of all requests that reach it; the threshold after each but the last.
    Not `feasible` where the first stage alone cannot carry the demand in time: then it has all devices, and
    `admission_rate` is the share that it can carry."""

    counts: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    reached: tuple[float, ...]
    thresholds: tuple[float, ...]
    feasible: bool = True
    admission_rate: float = 1.0

    @property
    def gain(self) -> float:
        """What is made as large as it can be."""
        return sum(self.reached[1:])


def solve_chain(problem: ChainProblem) -> ChainSolution:
    """Return the best solution; of equally good ones that with the smallest batches. Devices that nobody needs go to
    the last stage that anybody reaches."""
    best: ChainSolution | None = None
    last_shares = [problem.curves[-1].share(threshold) for threshold in _GRID]
    for costs in itertools.product(*(_needed(stage.costs) for stage in problem.stages)):
        if _latency_s(problem, costs) > problem.slo_s:
            continue
        found = _best_for(problem, costs, last_shares)
        if found is not None and (best is None or found.gain > best.gain + 1e-12):
            best = found
    return best or _light_alone(problem)


def _needed(costs: Sequence[BatchCost]) -> list[BatchCost]:
    """Without those that take longer than another and get no more done."""
    kept: list[BatchCost] = []
    for cost in sorted(costs, key=lambda each: each.latency_s):
        if not kept or cost.throughput > kept[-1].throughput:
            kept.append(cost)
    return kept


def _latency_s(problem: ChainProblem, costs: Sequence[BatchCost]) -> float:
    waits = sum(stage.wait_s for stage in problem.stages)
    return sum(cost.latency_s for cost in costs) + waits + problem.discriminator_s * (len(costs) - 1)


def _best_for(problem: ChainProblem, costs: Sequence[BatchCost], last_shares: Sequence[float]) -> ChainSolution | None:
    first = _devices(problem, 1.0, costs[0])
    if first > problem.device_count:
        return None
    found = (
        _with_last(problem, costs, start, last_shares)
        for start in _starts(problem, costs, _Start((), (first,), (1.0,)))
    )
    return max(found, key=lambda each: each.gain, default=None)


@dataclass(frozen=True)
class _Start:
    """Thresholds of the first stages, the devices that these and the next one take, and the shares that reach them."""

    thresholds: tuple[float, ...]
    counts: tuple[int, ...]
    reached: tuple[float, ...]


def _starts(problem: ChainProblem, costs: Sequence[BatchCost], start: _Start) -> Iterator[_Start]:
    """Starts with thresholds of all stages but the last two, as far as the devices are there."""
    stage = len(start.thresholds)
    if stage == len(problem.curves) - 1:
        yield start
        return
    curve = problem.curves[stage]
    steps = max(2, min(THRESHOLD_COUNT, round(_MOST_COMBINATIONS ** (1.0 / (len(problem.curves) - 1)))))
    for threshold in (index / (steps - 1) for index in range(steps)):
        share = start.reached[-1] * curve.share(threshold)
        counts = (*start.counts, _devices(problem, share, costs[stage + 1]))
        if sum(counts) > problem.device_count:
            return  # a higher threshold takes more
        yield from _starts(problem, costs, _Start((*start.thresholds, threshold), counts, (*start.reached, share)))


def _with_last(
    problem: ChainProblem, costs: Sequence[BatchCost], start: _Start, last_shares: Sequence[float]
) -> ChainSolution:
    """The rest of the devices for the last stage, and the largest threshold that they carry; for the stage before it
    where that is none, since some are always sent on."""
    left = problem.device_count - sum(start.counts)
    asked = problem.demand * start.reached[-1]
    most = left * costs[-1].throughput / asked if asked > 0 else 1.0
    index = bisect_right(last_shares, most * (1 + 1e-9)) - 1
    counts = (*start.counts, left)
    if index < 0:
        index, left, counts = 0, 0, (*start.counts[:-1], start.counts[-1] + left, 0)
    reached = start.reached[-1] * last_shares[index] if left else 0.0
    return ChainSolution(
        counts,
        tuple(cost.batch_size for cost in costs),
        (*start.reached, reached),
        (*start.thresholds, _GRID[index]),
    )


def _light_alone(problem: ChainProblem) -> ChainSolution:
    stage = problem.stages[0]
    in_time = [cost for cost in stage.costs if cost.latency_s + stage.wait_s <= problem.slo_s]
    cost = max(in_time, key=lambda each: each.throughput) if in_time else min(stage.costs, key=lambda c: c.latency_s)
    rest = len(problem.stages) - 1
    carried = problem.device_count * cost.throughput
    sizes = (cost.batch_size, *(stage.costs[0].batch_size for stage in problem.stages[1:]))
    admitted = min(1.0, carried / problem.demand) if problem.demand > 0 else 1.0
    return ChainSolution(
        (problem.device_count, *(0,) * rest), sizes, (1.0, *(0.0,) * rest), (0.0,) * rest, False, admitted
    )


def _devices(problem: ChainProblem, share: float, cost: BatchCost) -> int:
    """One at least for a stage that anybody may reach, also while nobody asks."""
    return max(1, math.ceil(problem.demand * share / cost.throughput - 1e-9)) if share > 0.0 else 0
