"""Plan as the baselines that DiffServe compares with (section 4.1).

Proteus chooses variants by load and sends requests to them at random. Clipper adapts the batches of one model: one more
after a period without violations, half after one with.
"""

import math
from dataclasses import dataclass, replace

from lab.planners.ablations import same_again
from pentimento.domain.fleet import Plan, PoolPlan, RouteShare
from pentimento.policies.plan.costs import BatchCost, batch_costs
from pentimento.policies.plan.demand import averaged_demand, demand_of
from pentimento.policies.plan.entry import IMAGE, LATENT, NOISE
from pentimento.policies.plan.inputs import UNNUMBERED, Decision, PlanInput
from pentimento.policies.plan.placement import OneModel, one_left, place
from pentimento.policies.plan.settings import ServingSettings


@dataclass(frozen=True)
class _Split:
    """A share of the demand for the heavy model, and what carries it."""

    heavy_share: float
    light_count: int
    heavy_count: int
    light_batch: int
    heavy_batch: int


@dataclass(frozen=True)
class ProteusMemory:
    """Keep the averaged demand at `at_s`."""

    demand: float
    at_s: float


@dataclass(frozen=True)
class Proteus:
    """An allocator that sends requests at random: the largest share for the heavy model that the devices carry within
    the SLO, a wait of twice the execution assumed. Demand is averaged and over-provisioned as DiffServe's, so that only
    the routing differs."""

    settings: ServingSettings

    def __call__(self, context: PlanInput) -> Decision:
        settings = self.settings
        if (alone := one_left(context, settings, [settings.light])) is not None:
            return alone
        last = context.last.memory
        before = last if isinstance(last, ProteusMemory) else ProteusMemory(settings.expected_per_s, context.now_s)
        asked = demand_of(context, settings.light).arrivals_per_s + demand_of(context, settings.heavy).arrivals_per_s
        demand = averaged_demand(asked, before.demand, settings.demand_weight, context.now_s - before.at_s)
        split = self._best(context, demand * settings.overprovision)
        counts = {settings.light: split.light_count, settings.heavy: split.heavy_count}
        batches = {settings.light: split.light_batch, settings.heavy: split.heavy_batch}
        assignments = place(context, counts, batches)
        shares = {settings.light: 1.0 - split.heavy_share, settings.heavy: split.heavy_share}
        pools = tuple(
            PoolPlan(
                model,
                model,
                tuple(assignment.worker_id for assignment in assignments if assignment.model == model),
                routes=tuple(RouteShare(start, share) for start in (NOISE, LATENT, IMAGE)),
            )
            for model, share in shares.items()
        )
        return Decision(Plan(UNNUMBERED, assignments, pools), ProteusMemory(demand, context.now_s))

    def _best(self, context: PlanInput, demand: float) -> _Split:
        settings = self.settings
        lights = _in_time(batch_costs(context, settings.light, settings.batch_sizes), settings.slo_s)
        heavies = _in_time(batch_costs(context, settings.heavy, settings.batch_sizes), settings.slo_s)
        device_count = context.holder_count(settings.light, settings.heavy)
        splits = [_split(demand, device_count, light, heavy) for light in lights for heavy in heavies]
        if not splits:
            cost = min(batch_costs(context, settings.light, settings.batch_sizes), key=lambda cost: cost.latency_s)
            return _Split(0.0, device_count, 0, cost.batch_size, 1)
        return max(splits, key=lambda split: (split.heavy_share, -split.heavy_batch, -split.light_batch))


def _in_time(costs: tuple[BatchCost, ...], slo_s: float) -> list[BatchCost]:
    return [cost for cost in costs if cost.latency_s + same_again(cost) <= slo_s]


def _split(demand: float, device_count: int, light: BatchCost, heavy: BatchCost) -> _Split:
    """Return the largest number of heavy devices that leaves enough for the rest of the demand."""
    best = _Split(0.0, device_count, 0, light.batch_size, heavy.batch_size)
    for heavy_count in range(1, device_count + 1):
        share = min(1.0, heavy_count * heavy.throughput / demand) if demand > 0 else 1.0
        light_count = math.ceil((1.0 - share) * demand / light.throughput - 1e-9)
        if light_count + heavy_count > device_count:
            break
        if share == 1.0:
            return _Split(1.0, 0, device_count, light.batch_size, heavy.batch_size)
        best = _Split(share, device_count - heavy_count, heavy_count, light.batch_size, heavy.batch_size)
    return best


@dataclass(frozen=True)
class ClipperMemory:
    """Keep the batch size of all devices."""

    batch: int


@dataclass(frozen=True)
class ClipperModel(OneModel):
    """One model on every device, in batches of Clipper's rule, never above what fits the SLO."""

    def __call__(self, context: PlanInput) -> Decision:
        return replace(super().__call__(context), memory=ClipperMemory(self.batch(context)))

    def batch(self, context: PlanInput) -> int:
        """Return the next batch size."""
        before = context.last.memory.batch if isinstance(context.last.memory, ClipperMemory) else 0
        if demand_of(context, self.model).violation_count > 0:
            return max(1, before // 2)
        return min(before + 1, super().batch(context))
