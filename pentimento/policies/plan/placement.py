"""Build the parts of plans that all policies share: assignments of models to workers, empty pools, scored stages."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from pentimento.domain.fleet import Plan, PoolPlan, Replica, StagePlan, StartThreshold, WorkerAssignment
from pentimento.domain.models import Handover
from pentimento.policies.plan.costs import LoadSeconds, batch_costs
from pentimento.policies.plan.demand import demand_of
from pentimento.policies.plan.entry import EVERY_START
from pentimento.policies.plan.inputs import UNNUMBERED, Decision, PlanInput
from pentimento.policies.plan.settings import ServingSettings


def place(
    context: PlanInput, counts: Mapping[str, int], batch_sizes: Mapping[str, int]
) -> tuple[WorkerAssignment, ...]:
    """Assign workers to each model by the seconds of its load, then in the order of their ids. Counts beyond the fleet
    are cut from the end of `counts`.

    A worker keeps its model while that model still needs it. A model that needs fewer workers loses the workers that
    are quickest to load a model with too few workers. A model with a count of 0 but waiting requests keeps a worker
    until they are done, unless that is the last worker of a model with demand. No worker receives a model without a
    profile on its kind of device.
    """
    workers = context.workers()
    left = _with_drains(context, _cut(counts, len(workers)))
    profiled = {(profile.model, profile.device) for profile in context.profiles}
    loads, chosen = LoadSeconds(context), dict[str, str]()
    holders = Counter(worker.held_model for worker in workers)
    lacking = [name for name, count in left.items() if count > holders[name]]

    def quickest_s(worker: Replica) -> float:
        """Return the seconds of the worker's quickest load of a model that lacks workers."""
        usable = (name for name in lacking if name in worker.models and _is_profiled(profiled, name, worker))
        return min((loads.of(worker, name) for name in usable), default=math.inf)

    for worker in sorted(workers, key=quickest_s, reverse=True):
        held = worker.held_model
        if left.get(held, 0) > 0 and (held not in counts or _is_profiled(profiled, held, worker)):
            _take(worker, held, chosen, left)
    others = [worker for worker in workers if worker.instance_id not in chosen]
    usable = [
        (worker, name)
        for worker in others
        for name, count in left.items()
        if count > 0 and name in worker.models and _is_profiled(profiled, name, worker)
    ]
    for worker, name in _soonest_first(loads, usable):
        if worker.instance_id not in chosen and left[name] > 0:
            _take(worker, name, chosen, left)
    return tuple(
        WorkerAssignment(worker.instance_id, worker.address, model, worker.generation, batch_sizes.get(model, 1))
        for worker in workers
        if (model := chosen.get(worker.instance_id)) is not None
    )


def _soonest_first(loads: LoadSeconds, pairs: Sequence[tuple[Replica, str]]) -> list[tuple[Replica, str]]:
    """Return the pairs of worker and model by the seconds that the load takes longer than on the model's best worker.
    Equal ones keep their order."""
    seconds = [loads.of(worker, model) for worker, model in pairs]
    least: dict[str, float] = {}
    for (_, model), load_s in zip(pairs, seconds, strict=True):
        least[model] = min(load_s, least.get(model, load_s))
    longer = [load_s - least[model] for (_, model), load_s in zip(pairs, seconds, strict=True)]
    return [pairs[at] for at in sorted(range(len(pairs)), key=longer.__getitem__)]


def _take(worker: Replica, model: str, chosen: dict[str, str], left: dict[str, int]) -> None:
    chosen[worker.instance_id] = model
    left[model] -= 1


def _cut(counts: Mapping[str, int], available: int) -> dict[str, int]:
    cut: dict[str, int] = {}
    for model, count in counts.items():
        cut[model] = min(max(count, 0), available)
        available -= cut[model]
    return cut


def _with_drains(context: PlanInput, counts: dict[str, int]) -> dict[str, int]:
    """Give a worker to each model that has only a queue left: from the largest count above 1, or from an idle model."""
    known = {worker.held_model for worker in context.workers()} | counts.keys()
    asked = {name: demand_of(context, name) for name in counts}
    idle = {name for name, one in asked.items() if one.queue_length == 0 and one.arrivals_per_s == 0.0}
    for demand in context.demand:
        if demand.queue_length > 0 and demand.model in known and not counts.get(demand.model):
            donor = max(counts, key=lambda model: counts[model], default=None)
            if donor is not None and (counts[donor] > 1 or (counts[donor] == 1 and donor in idle)):
                counts[donor] -= 1
                counts[demand.model] = 1
    return counts


def _is_profiled(profiled: Set[tuple[str, str]], model: str, worker: Replica) -> bool:
    """Return whether the model has a profile for the worker's device, or one without a device, which fits any."""
    return (model, worker.device) in profiled or (model, "") in profiled


def with_pools_of(
    plan: Plan, models: Iterable[str], names: Callable[[str], Iterable[str]] = lambda model: (model,)
) -> Plan:
    """Return the plan with an empty pool for each model without one, for waiting requests. `names` returns a model's
    pool names."""
    there = {pool.pool for pool in plan.pools}
    empty = (PoolPlan(name, model, ()) for model in dict.fromkeys(models) for name in names(model) if name not in there)
    return replace(plan, pools=(*plan.pools, *empty))


def scored_stage(pool: str, thresholds: tuple[StartThreshold, ...], handover: Handover | None) -> StagePlan:
    """Return a stage that defers images to the next one, with the registered discriminator and reuse.

    Without a registration any discriminator of the two models scores the images, and the next stage starts from noise.
    """
    if handover is None:
        return StagePlan(pool, thresholds)
    return StagePlan(
        pool,
        thresholds,
        handover.discriminator,
        reuse_share=handover.reuse_share,
        discriminator_digest=handover.discriminator_digest,
    )


@dataclass(frozen=True)
class OneModel:
    """Give `model` to all devices, in the largest batches within `slo_s`."""

    model: str
    slo_s: float
    batch_sizes: tuple[int, ...] = (1,)

    def __call__(self, context: PlanInput) -> Decision:
        batch = self.batch(context)
        assignments = place(context, {self.model: len(context.workers())}, {self.model: batch})
        models = dict.fromkeys((self.model, *(one.model for one in assignments)))
        workers = {model: tuple(one.worker_id for one in assignments if one.model == model) for model in models}
        pools = (
            PoolPlan(self.model, self.model, workers[self.model], routes=EVERY_START),
            # Replaced models serve the requests that wait for them.
            *(PoolPlan(model, model, workers[model]) for model in models if model != self.model),
        )
        return Decision(Plan(UNNUMBERED, assignments, pools))

    def batch(self, context: PlanInput) -> int:
        """Return the batch size of all devices."""
        costs = batch_costs(context, self.model, self.batch_sizes)
        return max((cost.batch_size for cost in costs if cost.latency_s <= self.slo_s), default=costs[0].batch_size)


def one_left(context: PlanInput, settings: ServingSettings, lighter: Sequence[str]) -> Decision | None:
    """Return the decision of one model on all devices, if no worker can hold the heavy or any lighter model.

    The model is the heavy one, or the first lighter one that a worker can hold; None if workers can hold both kinds, or
    neither. The memory stays until the other models are back.
    """
    able = context.able_models()
    light = next((model for model in lighter if model in able), "")
    if bool(light) == (settings.heavy in able):
        return None
    left = light or settings.heavy
    decision = OneModel(left, settings.slo_s, settings.batch_sizes)(context)
    return Decision(with_pools_of(decision.plan, (settings.heavy, *lighter)), context.last.memory)
