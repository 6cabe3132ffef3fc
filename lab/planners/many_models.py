"""Plan many models on few workers as `many-models` is compared with: LRU in turn, and a fixed share of the models.

Both know what the policy knows: the queue of each model, and since when it has not been empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pentimento.policies.plan.demand import demand_of
from pentimento.policies.plan.inputs import Decision, PlanInput
from pentimento.policies.plan.many_models import HeldModels, LoadCosts, plan_of
from pentimento.policies.plan.registry import ServingPolicy, policy
from pentimento.policies.plan.settings import ServingSettings


@dataclass(frozen=True)
class QueuedModels:
    """Hold since when each model's requests wait, the last round with a request of it, and the workers' models."""

    since_s: Mapping[str, float] = field(default_factory=dict)
    used_s: Mapping[str, float] = field(default_factory=dict)
    held: HeldModels = field(default_factory=HeldModels)
    turn: int = 0


class LruModels:
    """Load a waiting model that no worker holds, the longest waiting first: on the worker with the least recently used
    model, or while all models have waiting requests, on the next worker in turn with younger ones."""

    def __call__(self, context: PlanInput) -> Decision:
        seen = _seen(context)
        workers = context.workers()
        held, turn = seen.held.by_name(workers), seen.turn
        free = dict(seen.held.free(workers, context.now_s))
        for model in sorted(seen.since_s, key=lambda name: (seen.since_s[name], name)):
            if model in held.values():
                continue
            idle = [name for name in free if held[name] not in seen.since_s]
            younger = [name for name in free if seen.since_s.get(held[name], 0.0) > seen.since_s[model]]
            if idle:
                chosen = min(idle, key=lambda name: (seen.used_s.get(held[name], 0.0), name))
            elif younger:
                chosen, turn = younger[turn % len(younger)], turn + 1
            else:
                continue
            held[chosen] = model
            del free[chosen]
        return _decision(context, seen, held, turn)


class FixedShares:
    """Give each worker a fixed share of the models, in turn by name, which it holds one after the other: always the
    model with the longest waiting request."""

    def __call__(self, context: PlanInput) -> Decision:
        seen = _seen(context)
        workers = context.workers()
        held = seen.held.by_name(workers)
        free = seen.held.free(workers, context.now_s)
        for place, worker in enumerate(workers):
            own = sorted(worker.models)[place :: len(workers)]
            waiting = [model for model in own if model in seen.since_s]
            if waiting and worker.instance_id in free:
                held[worker.instance_id] = min(waiting, key=lambda name: (seen.since_s[name], name))
        return _decision(context, seen, held)


def _decision(context: PlanInput, seen: QueuedModels, held: Mapping[str, str], turn: int = 0) -> Decision:
    after = seen.held.after(context.workers(), held, context.now_s, LoadCosts(context))
    return Decision(plan_of(context, held), replace(seen, held=after, turn=turn))


def _seen(context: PlanInput) -> QueuedModels:
    before = context.last.memory if isinstance(context.last.memory, QueuedModels) else QueuedModels()
    waits = {model for model in context.able_models() if demand_of(context, model).queue_length > 0}
    used = {one.model: context.now_s for one in context.demand if one.arrivals_per_s > 0.0}
    since_s = {model: before.since_s.get(model, context.now_s) for model in waits}
    return replace(before, since_s=since_s, used_s={**before.used_s, **used})


@policy()
def lru_models(settings: ServingSettings) -> ServingPolicy:
    """Build the baseline that evicts the least recently used model, workers in turn."""
    return ServingPolicy("lru-models", LruModels(), plans_batches=False, follows_queues=True)


@policy()
def fixed_shares(settings: ServingSettings) -> ServingPolicy:
    """Build the baseline with a fixed share of the models on each worker."""
    return ServingPolicy("fixed-shares", FixedShares(), plans_batches=False, follows_queues=True)
