"""DiffServe's allocation problem (section 3.3 of the paper), solved exactly by enumeration.

    max t  over x1, x2, b1, b2, t
    e(b1) + q(b1) + e(b2) + q(b2) <= L     x1 * T1(b1) >= D     x2 * T2(b2) >= D * f(t)     x1 + x2 <= S

For a pair of batch sizes the fewest light devices that carry D leave most for the heavy model, and f is monotone: so
one bisection a pair of batch sizes finds the optimum, and 36 pairs are all there is. `cascade_milp` solves the same
problem as the paper does, as a mixed integer linear program.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pentimento.policies.serving.costs import BatchCost
from pentimento.policies.serving.settings import DeferralCurve

QueueDelay = Callable[[BatchCost], float]
"""q(b): seconds that a request waits before its batch of this size begins."""


@dataclass(frozen=True)
class CascadeProblem:
    """The allocation problem of a cascade with its numbers. `demand` is D with its over-provisioning, requests a
    second; `thresholds` ascend. The other symbols are those of the problem above.

    `relaxed` leaves the heavy model's terms out of the first constraint where nobody is sent on: the paper's Eq. 1 has
    them always, so that a long heavy queue makes every threshold infeasible, 0 included."""

    demand: float
    device_count: int
    slo_s: float
    light: tuple[BatchCost, ...]
    heavy: tuple[BatchCost, ...]
    deferral: DeferralCurve
    thresholds: tuple[float, ...]
    light_queue_s: QueueDelay
    heavy_queue_s: QueueDelay
    discriminator_s: float = 0.0
    relaxed: bool = False

    def light_s(self, cost: BatchCost) -> float:
        """Return the seconds until a picture of the light model is scored."""
        return cost.latency_s + self.light_queue_s(cost) + self.discriminator_s

    def heavy_s(self, cost: BatchCost) -> float:
        """Return the seconds that the heavy model adds."""
        return cost.latency_s + self.heavy_queue_s(cost)


@dataclass(frozen=True)
class CascadeSolution:
    """The devices, batch sizes and threshold that solve it: x1, x2, b1, b2, t. `feasible` is False
    when no choice keeps all constraints: then this is the best that can be done, everything light, and `admission_rate`
    the share of D that it carries."""

    light_count: int
    heavy_count: int
    light_batch: int
    heavy_batch: int
    threshold: float
    latency_s: float
    feasible: bool = True
    admission_rate: float = 1.0


def grid(count: int) -> tuple[float, ...]:
    """Return `count` thresholds, evenly spaced from 0 to 1."""
    return tuple(index / (count - 1) for index in range(count))


def solve(problem: CascadeProblem) -> CascadeSolution:
    """Return the solution with the largest threshold; among equals the one that leaves the light pool most to spare,
    then that of the lowest latency."""
    candidates = [
        found for light in problem.light for heavy in problem.heavy if (found := _for_batches(problem, light, heavy))
    ]
    if not candidates:
        return all_light(problem)
    light = {cost.batch_size: cost.throughput for cost in problem.light}
    return max(
        candidates,
        key=lambda found: (
            found.threshold,
            found.light_count * light[found.light_batch],
            -found.latency_s,
            -found.heavy_batch,
        ),
    )


def _for_batches(problem: CascadeProblem, light: BatchCost, heavy: BatchCost) -> CascadeSolution | None:
    light_count = max(1, math.ceil(problem.demand / light.throughput - 1e-9))
    heavy_count = problem.device_count - light_count
    if heavy_count < 0:
        return None
    light_s, heavy_s = problem.light_s(light), problem.heavy_s(heavy)
    in_time = light_s + heavy_s <= problem.slo_s
    if not in_time and (light_s > problem.slo_s or not problem.relaxed):
        return None
    capacity = heavy_count * heavy.throughput if in_time else 0.0
    threshold = _largest(problem.deferral, problem.thresholds, problem.demand, capacity)
    if threshold is None:
        return None
    if problem.deferral.share(threshold) <= 0.0:
        # Nobody is sent on: the light pool may as well have all devices.
        return CascadeSolution(problem.device_count, 0, light.batch_size, heavy.batch_size, threshold, light_s)
    latency_s = light_s + heavy_s
    return CascadeSolution(light_count, heavy_count, light.batch_size, heavy.batch_size, threshold, latency_s)


def _largest(curve: DeferralCurve, thresholds: Sequence[float], demand: float, heavy_capacity: float) -> float | None:
    """Return the largest t with D * f(t) <= x2 * T2(b2); None where even the lowest defers too many."""
    low, high = 0, len(thresholds)
    while low < high:
        middle = (low + high) // 2
        if demand * curve.share(thresholds[middle]) <= heavy_capacity * (1 + 1e-9):
            low = middle + 1
        else:
            high = middle
    return thresholds[low - 1] if low else None


def all_light(problem: CascadeProblem) -> CascadeSolution:
    """Return what is done where nothing keeps the constraints: no deferral, the batch that carries most within the SLO
    (or the quickest)."""
    in_time = [cost for cost in problem.light if cost.latency_s <= problem.slo_s]
    best = max(in_time, key=lambda cost: cost.throughput) if in_time else min(problem.light, key=lambda c: c.latency_s)
    capacity = problem.device_count * best.throughput
    rate = min(1.0, capacity / problem.demand) if problem.demand > 0 else 1.0
    heavy_batch = problem.heavy[0].batch_size
    return CascadeSolution(problem.device_count, 0, best.batch_size, heavy_batch, 0.0, best.latency_s, False, rate)
