"""Serve many models on few devices: decide which worker holds which model, and when it switches.

Any worker can load any model that it lists. A switch costs the seconds during which the worker serves nothing: those of
the load, or few if it reads the next model while it generates. And the next request for the model that left waits for
another load. So each round compares, for each worker, requests a second: the waiting requests of another model over
these seconds and service, against what the worker serves now. The longer a request waits, the more it counts, so that
no model starves. Reports have no ages: a model's queue is served in order, so the waiting requests are the last ones
that arrived.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pentimento.domain.fleet import Plan, PoolPlan, Replica, WorkerAssignment
from pentimento.domain.weights import SwitchWay
from pentimento.policies.plan.costs import LoadSeconds
from pentimento.policies.plan.demand import demand_of, settled_weight, smoothed
from pentimento.policies.plan.inputs import UNNUMBERED, AllocationProfile, Decision, PlanInput
from pentimento.policies.plan.placement import with_pools_of
from pentimento.policies.plan.settings import ServingSettings

# Seconds of a model without a profile: of an image, and of a load.
ASSUMED_RUN_S, ASSUMED_LOAD_S = 5.0, 5.0
# Requests count double once they have waited for this many times the seconds that a load and a run take.
PATIENCE = 1.0
# Weight of a request that is expected, next to one that waits: an idle worker takes what waits, unless it holds a model
# in much demand.
EXPECTED_WEIGHT = 0.1
# Shares of a load during which a worker serves nothing. A model that was read ahead is placed in a tenth of a second a
# gigabyte, and the last images of the former one end in smaller batches.
BLOCKED_SHARES = {SwitchWay.BESIDE: 0.0, SwitchWay.STAGED: 0.15, SwitchWay.UNLOAD_FIRST: 1.0}
# Workers of a model carry its arrivals up to this share of their time.
CARRIED_SHARE = 0.7


WaitingSince = tuple[tuple[float, float], ...]
"""Numbers of waiting requests by the time of their arrival, the oldest first: (arrived_s, count)."""


def still_waiting(known: WaitingSince, now_s: float, arrived_count: float, waiting_count: int) -> WaitingSince:
    """Return the newest `waiting_count` requests among the `known` ones and `arrived_count` that arrived until `now_s`.
    Requests beyond these came back to the queue, and count as old as the oldest."""
    groups, left = [], float(waiting_count)
    for at_s, count in reversed((*known, (now_s, arrived_count))):
        taken = min(count, left)
        if taken > 0.0:
            groups.append((at_s, taken))
            left -= taken
    if left > 0.0:
        at_s, count = groups.pop() if groups else (now_s, 0.0)
        groups.append((at_s, count + left))
    return tuple(reversed(groups))


@dataclass(frozen=True)
class ModelState:
    """Hold a model's demand: the average of its arrivals a second, and its waiting requests."""

    per_s: float = 0.0
    waiting: WaitingSince = ()

    def mean_wait_s(self, now_s: float) -> float:
        """Return how long its waiting requests have waited in the mean; 0 without any."""
        total = sum(count for _, count in self.waiting)
        return sum(count * (now_s - at_s) for at_s, count in self.waiting) / total if total else 0.0


@dataclass(frozen=True)
class HeldBy:
    """Hold the model that a worker was assigned, and the time at which it serves it, its load included."""

    model: str
    ready_s: float


@dataclass(frozen=True)
class HeldModels:
    """Hold each worker's model by instance and start. Reports do not replace it: a worker reports its new model before
    it has loaded it, and a round may be decided again with the memory of the one before."""

    workers: Mapping[tuple[str, int], HeldBy] = field(default_factory=dict)

    def by_name(self, workers: Iterable[Replica]) -> dict[str, str]:
        """Return the workers' models by instance: the assigned ones, while the workers list them."""
        return {one.instance_id: self._of(one).model for one in workers}

    def free(self, workers: Iterable[Replica], now_s: float) -> dict[str, Replica]:
        """Return the workers that are not loading."""
        return {one.instance_id: one for one in workers if self._of(one).ready_s <= now_s}

    def after(
        self, workers: Iterable[Replica], held: Mapping[str, str], now_s: float, costs: "LoadCosts"
    ) -> "HeldModels":
        """Return what workers hold from now on."""
        found = {}
        for one in workers:
            before, model = self._of(one), held[one.instance_id]
            changed = HeldBy(model, now_s + costs.load_s(one, model))
            found[one.instance_id, one.generation] = before if before.model == model else changed
        return HeldModels(found)

    def _of(self, worker: Replica) -> HeldBy:
        assigned = self.workers.get((worker.instance_id, worker.generation))
        known = assigned is not None and assigned.model in worker.models
        return assigned if assigned is not None and known else HeldBy(worker.held_model, -math.inf)


@dataclass(frozen=True)
class ManyModelsMemory:
    """Hold the models' demand, the time of the round, and the workers' models."""

    models: Mapping[str, ModelState] = field(default_factory=dict)
    now_s: float = 0.0
    held: HeldModels = HeldModels()


@dataclass(frozen=True)
class ModelLoad:
    """Hold what a model needs in a round: waiting requests, their mean age, arrivals a second, seconds of an image, and
    the number of workers that hold it or load it."""

    waiting_count: int
    waited_s: float
    per_s: float
    run_s: float
    holder_count: int

    def urgency(self, load_s: float) -> float:
        """Return the mean weight of a waiting request: 1 for a new one, more with its age."""
        return 1.0 + self.waited_s / (PATIENCE * (load_s + self.run_s))

    def served_now(self, load_s: float, served_s: float) -> float:
        """Return the requests a second that would be lost with one of its workers, which serves it for `served_s` more
        seconds."""
        others = self.holder_count - 1
        if self.waiting_count > self.holder_count * served_s / self.run_s:
            return self.urgency(load_s) / self.run_s
        return EXPECTED_WEIGHT * max(self.per_s - CARRIED_SHARE * others / self.run_s, 0.0)

    def served_after(self, load_s: float, blocked_s: float) -> float:
        """Return the waiting requests a second that one more worker would serve after its load. For `blocked_s` of the
        load the worker serves nothing."""
        left = self.waiting_count - self.holder_count * load_s / self.run_s
        carried = self.per_s * self.run_s <= CARRIED_SHARE * self.holder_count
        if left <= 0 or (self.holder_count and carried):
            # Its workers serve a short queue before a load ends, and a long one if arrivals leave them time.
            return 0.0
        return self.urgency(load_s) * left / (blocked_s + left * self.run_s)


@dataclass(frozen=True)
class ManyModels:
    """Plan by the rules of this module."""

    settings: ServingSettings

    def __call__(self, context: PlanInput) -> Decision:
        """Return the assignments, a pool for each model, and the memory."""
        before = context.last.memory if isinstance(context.last.memory, ManyModelsMemory) else ManyModelsMemory()
        models = self._models(context, before)
        workers = context.workers()
        costs = LoadCosts(context)
        held = before.held.by_name(workers)
        free = before.held.free(workers, context.now_s)
        held = _switched(free, held, _loads(context, models, held, costs), costs)
        after = before.held.after(workers, held, context.now_s, costs)
        return Decision(plan_of(context, held), ManyModelsMemory(models, context.now_s, after))

    def _models(self, context: PlanInput, before: ManyModelsMemory) -> dict[str, ModelState]:
        """Return the demand of all models that a worker can hold."""
        elapsed_s = max(context.now_s - before.now_s, 0.0) if before.models else 1.0
        found: dict[str, ModelState] = {}
        for model in sorted(context.able_models()):
            demand, known = demand_of(context, model), before.models.get(model, ModelState())
            weight = 1.0 - (1.0 - settled_weight(self.settings.demand_weight, known.per_s)) ** elapsed_s
            per_s = smoothed(demand.arrivals_per_s, known.per_s, weight)
            arrived = demand.arrivals_per_s * elapsed_s
            found[model] = ModelState(per_s, still_waiting(known.waiting, context.now_s, arrived, demand.queue_length))
        return found


class LoadCosts:
    """Read the seconds of a load and of an image, by model and worker."""

    def __init__(self, context: PlanInput) -> None:
        self._loads = LoadSeconds(context)
        self._profiles: dict[tuple[str, str], AllocationProfile] = {}
        self._run_s: dict[str, float] = {}
        for profile in sorted(context.profiles, key=lambda one: -one.batch_size):
            self._profiles[profile.model, profile.device] = profile
            self._profiles[profile.model, ""] = profile
            run_s = profile.latency_s / profile.batch_size
            self._run_s[profile.model] = min(run_s, self._run_s.get(profile.model, run_s))

    def load_s(self, worker: Replica, model: str) -> float:
        """Return the seconds until the worker would serve the model: as `LoadSeconds`, else assumed."""
        return self._loads.of(worker, model) or ASSUMED_LOAD_S

    def blocked_s(self, worker: Replica, model: str) -> float:
        """Return the seconds of the load during which the worker serves nothing, by the way of its last change."""
        way = worker.change.way if worker.change is not None else SwitchWay.UNLOAD_FIRST
        return BLOCKED_SHARES[way] * self.load_s(worker, model)

    def run_s(self, model: str) -> float:
        """Return the seconds of one image in the batches that cost least for each."""
        return self._run_s.get(model, ASSUMED_RUN_S)

    def fits(self, worker: Replica, model: str) -> bool:
        """Return whether the worker lists the model and its memory holds it, if both are known."""
        profile = self._profile(model, worker.device)
        memory_bytes = profile.memory_bytes if profile else 0
        return model in worker.models and (not worker.device_memory_bytes or memory_bytes <= worker.device_memory_bytes)

    def _profile(self, model: str, device: str) -> AllocationProfile | None:
        return self._profiles.get((model, device)) or self._profiles.get((model, ""))


def _loads(
    context: PlanInput, models: Mapping[str, ModelState], held: Mapping[str, str], costs: LoadCosts
) -> dict[str, ModelLoad]:
    holders = list(held.values())
    return {
        model: ModelLoad(
            demand_of(context, model).queue_length,
            state.mean_wait_s(context.now_s),
            state.per_s,
            costs.run_s(model),
            holders.count(model),
        )
        for model, state in models.items()
    }


def _switched(
    free: dict[str, Replica], held: Mapping[str, str], loads: dict[str, ModelLoad], costs: LoadCosts
) -> dict[str, str]:
    """Return the held models after the switches of free workers that pay, the one of most gain first."""
    held = dict(held)
    while free:
        gain, worker, model = max(
            (
                (_gain(loads, costs, worker, held[worker.instance_id], model), worker.instance_id, model)
                for worker in free.values()
                for model, load in loads.items()
                if load.waiting_count > 0 and model != held[worker.instance_id] and costs.fits(worker, model)
            ),
            default=(0.0, "", ""),
        )
        if gain <= 0.0:
            break
        left = held[worker]
        if left in loads:
            loads[left] = replace(loads[left], holder_count=loads[left].holder_count - 1)
        loads[model] = replace(loads[model], holder_count=loads[model].holder_count + 1)
        held[worker] = model
        del free[worker]
    return held


def _gain(loads: Mapping[str, ModelLoad], costs: LoadCosts, worker: Replica, held: str, model: str) -> float:
    """Return the requests a second that the worker would serve more after a switch; negative if it does not pay."""
    load_s, blocked_s = costs.load_s(worker, model), costs.blocked_s(worker, model)
    after = loads[model].served_after(load_s, blocked_s)
    now = loads[held].served_now(costs.load_s(worker, held), load_s - blocked_s) if held in loads else 0.0
    return after - now


def plan_of(context: PlanInput, held: Mapping[str, str]) -> Plan:
    """Return the plan that gives workers these models, with a pool for each model that a worker can hold."""
    assignments = tuple(
        WorkerAssignment(one.instance_id, one.address, held[one.instance_id], one.generation)
        for one in context.workers()
        if held[one.instance_id]
    )
    pools = tuple(
        PoolPlan(model, model, tuple(one.worker_id for one in assignments if one.model == model))
        for model in sorted({one.model for one in assignments})
    )
    return with_pools_of(Plan(UNNUMBERED, assignments, pools), sorted(context.able_models()))
