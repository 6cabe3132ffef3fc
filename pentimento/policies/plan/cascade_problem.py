"""State DiffServe's allocation problem (section 3.3 of the paper) for a cascade of any length; solve it by enumeration.

    max  sum of r_k over the stages after the first       over x, b, t
    sum of e(b_k) + q(b_k) <= L         x_k * T(b_k) >= D * r_k         sum of x_k <= S
    r_1 = 1                             r_(k+1) = r_k * f_k(t_k)

r_k is the share of requests that reach stage k, x_k its devices, b_k its batch size, and t_k the threshold after it.
With two models it is the paper's problem: the largest threshold. The fewest devices that carry the first stages leave
most for the last one, and f is monotone: a bisection for each choice of batch sizes finds the optimum.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.settings import THRESHOLD_COUNT, DeferralCurve

# Combinations of thresholds, of all stages but the last two, that are tried for each choice of batch sizes.
_MOST_COMBINATIONS = 200


def grid(count: int) -> tuple[float, ...]:
    """Return `count` thresholds, evenly spaced from 0 to 1."""
    return tuple(index / (count - 1) for index in range(count))


@dataclass(frozen=True)
class CascadeProblem:
    """Hold the numbers of the problem.

    `demand` is D in requests a second. `stages`: the costs of each model by batch size, with the wait before a batch.
    `curves`: f(t) after each stage but the last. `thresholds`: ascending choices for the last threshold.
    `discriminator_s`: seconds of one scoring.
    """

    demand: float
    device_count: int
    slo_s: float
    stages: tuple[tuple[BatchCost, ...], ...]
    curves: tuple[DeferralCurve, ...]
    discriminator_s: float = 0.0
    thresholds: tuple[float, ...] = grid(THRESHOLD_COUNT)

    def latency_s(self, costs: Sequence[BatchCost]) -> float:
        """Return the seconds of a request that reaches the last stage, in batches of `costs`."""
        return sum(cost.felt_s for cost in costs) + self.discriminator_s * (len(costs) - 1)

    def devices(self, share: float, cost: BatchCost) -> int:
        """Return the devices of a stage for this share of requests: at least one for any share, even without demand."""
        return max(1, math.ceil(self.demand * share / cost.throughput - 1e-9)) if share > 0.0 else 0


@dataclass(frozen=True)
class CascadeSolution:
    """Hold, by stage: devices, batch size, the share of requests that reach it; the threshold after each but the last.

    `feasible` is False if no choice keeps all constraints: then the first stage has all devices, and `admission_rate`
    is the share of the demand that it carries.
    """

    counts: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    reached: tuple[float, ...]
    thresholds: tuple[float, ...]
    feasible: bool = True
    admission_rate: float = 1.0

    @property
    def gain(self) -> float:
        """Return the objective."""
        return sum(self.reached[1:])


def solve_cascade(problem: CascadeProblem) -> CascadeSolution:
    """Return the best solution. Spare devices go to the last stage that requests reach.

    Equal solutions are ranked by the throughput of the first stage, then by latency, then by small last batches.
    """
    last_shares = [problem.curves[-1].share(threshold) for threshold in problem.thresholds]
    ranked = []
    for costs in itertools.product(*(_needed(stage) for stage in problem.stages)):
        latency_s = problem.latency_s(costs)
        found = _best_for(problem, costs, last_shares) if latency_s <= problem.slo_s else None
        if found is not None:
            spare = found.counts[0] * costs[0].throughput
            rank = (found.gain, spare, -latency_s, tuple(-size for size in reversed(found.batch_sizes)))
            ranked.append((rank, found))
    return max(ranked, key=lambda one: one[0])[1] if ranked else first_stage_alone(problem)


def _needed(costs: Sequence[BatchCost]) -> list[BatchCost]:
    """Return the costs of batches with a higher throughput than every quicker one."""
    kept: list[BatchCost] = []
    for cost in sorted(costs, key=lambda each: each.latency_s):
        if not kept or cost.throughput > kept[-1].throughput:
            kept.append(cost)
    return kept


def _best_for(
    problem: CascadeProblem, costs: Sequence[BatchCost], last_shares: Sequence[float]
) -> CascadeSolution | None:
    first = problem.devices(1.0, costs[0])
    if first > problem.device_count:
        return None
    found = (
        _with_last(problem, costs, start, last_shares)
        for start in _starts(problem, costs, _Start((), (first,), (1.0,)))
    )
    return max(found, key=lambda each: each.gain, default=None)


@dataclass(frozen=True)
class _Start:
    """Hold the thresholds of the first stages, and the devices and shares of requests, also of the next stage."""

    thresholds: tuple[float, ...]
    counts: tuple[int, ...]
    reached: tuple[float, ...]


def _starts(problem: CascadeProblem, costs: Sequence[BatchCost], start: _Start) -> Iterator[_Start]:
    """Yield starts with thresholds of all stages but the last two, within the devices."""
    stage = len(start.thresholds)
    if stage == len(problem.curves) - 1:
        yield start
        return
    curve = problem.curves[stage]
    steps = max(2, min(THRESHOLD_COUNT, round(_MOST_COMBINATIONS ** (1.0 / (len(problem.curves) - 1)))))
    for threshold in grid(steps):
        share = start.reached[-1] * curve.share(threshold)
        counts = (*start.counts, problem.devices(share, costs[stage + 1]))
        if sum(counts) > problem.device_count:
            return  # a higher threshold needs more devices
        yield from _starts(problem, costs, _Start((*start.thresholds, threshold), counts, (*start.reached, share)))


def _with_last(
    problem: CascadeProblem, costs: Sequence[BatchCost], start: _Start, last_shares: Sequence[float]
) -> CascadeSolution:
    """Return the solution that gives the other devices to the last stage, with the largest threshold that they carry;
    if they carry none, to the stage before it."""
    left = problem.device_count - sum(start.counts)
    asked = problem.demand * start.reached[-1]
    most = left * costs[-1].throughput / asked if asked > 0 else 1.0
    index = max(bisect_right(last_shares, most * (1 + 1e-9)) - 1, 0)
    carries = left > 0 and last_shares[index] <= most * (1 + 1e-9)
    reached = start.reached[-1] * last_shares[index] if carries else 0.0
    threshold, counts = problem.thresholds[index], (*start.counts, left)
    if reached <= 0.0:
        threshold, counts = 0.0, (*start.counts[:-1], start.counts[-1] + left, 0)
    sizes = tuple(cost.batch_size for cost in costs)
    return CascadeSolution(counts, sizes, (*start.reached, reached), (*start.thresholds, threshold))


def first_stage_alone(problem: CascadeProblem) -> CascadeSolution:
    """Return the solution if no choice keeps the constraints: no deferral, and the batch with the highest throughput
    within the SLO (or the quickest)."""
    costs, rest = problem.stages[0], len(problem.stages) - 1
    in_time = [cost for cost in costs if cost.latency_s <= problem.slo_s]
    best = max(in_time, key=lambda cost: cost.throughput) if in_time else min(costs, key=lambda cost: cost.latency_s)
    carried = problem.device_count * best.throughput
    return CascadeSolution(
        (problem.device_count, *(0,) * rest),
        (best.batch_size, *(stage[0].batch_size for stage in problem.stages[1:])),
        (1.0, *(0.0,) * rest),
        (0.0,) * rest,
        False,
        min(1.0, carried / problem.demand) if problem.demand > 0 else 1.0,
    )
