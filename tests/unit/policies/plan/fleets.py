"""Small fleets for allocators to decide on."""

from dataclasses import replace

from pentimento.domain.demand import StartShare
from pentimento.domain.fleet import Plan, Replica, ReplicaKind
from pentimento.policies.plan.cascade import CascadePolicy, diffserve_cascade
from pentimento.policies.plan.inputs import AllocationProfile, Decision, ModelDemand, PlanInput, Policy, ReplicaView
from pentimento.policies.plan.maker import check_decision
from pentimento.policies.plan.settings import ServingSettings

# Seconds for a batch; A100, from DiffServe's artefact.
TURBO = {1: 0.1, 2: 0.15, 4: 0.22, 8: 0.41, 16: 0.77, 32: 1.56}
SD15 = {1: 1.78, 2: 2.16, 4: 3.68, 8: 6.79, 16: 12.88, 32: 25.35}
MODELS = ("turbo", "sd15")


def worker(index: int, resident: str = "sd15", models: tuple[str, ...] = MODELS) -> ReplicaView:
    replica = Replica(
        f"w{index:03d}",
        ReplicaKind.UNET_WORKER,
        f"sim:{index}",
        1,
        available_models=models,
        resident_models=(resident,),
    )
    return ReplicaView(replica)


def threshold_of(plan: Plan, pool: str, start: str = "noise") -> float:
    """Return the confidence that images of the pool must exceed; 0 if they are not scored."""
    stages = (stage for cascade in plan.cascades for stage in cascade.stages if stage.pool == pool)
    found = (one.confidence for stage in stages for one in stage.thresholds if one.start == start)
    return next(found, 0.0)


def profiles(**tables: dict[int, float]) -> tuple[AllocationProfile, ...]:
    return tuple(
        AllocationProfile(model, "", size, seconds, 0)
        for model, table in tables.items()
        for size, seconds in table.items()
    )


def context(count: int, *demand: ModelDemand, now_s: float = 0.0, resident: str = "sd15") -> PlanInput:
    return PlanInput(
        now_s,
        tuple(worker(index, resident) for index in range(count)),
        demand,
        profiles(turbo=TURBO, sd15=SD15),
    )


def decide(allocator: Policy, asked: PlanInput) -> Decision:
    """Return the decision, checked as the controller checks it."""
    decision = allocator(asked)
    check_decision(asked, decision)
    return decision


def repeat(allocator: Policy, asked: PlanInput, times: int, every_s: float) -> tuple[Decision, list[Decision]]:
    """Decide `times` times under the same demand; return the last decision and the list of all decisions."""
    decisions: list[Decision] = []
    for index in range(times):
        last = decisions[-1] if decisions else Decision()
        now_s = asked.now_s + index * every_s
        decisions.append(decide(allocator, replace(asked, now_s=now_s, last=last)))
    return decisions[-1], decisions


def diffserve(settings: ServingSettings) -> CascadePolicy:
    return CascadePolicy(settings, diffserve_cascade(settings))


def counts(decision: Decision) -> dict[str, int]:
    models = [assignment.model for assignment in decision.plan.assignments]
    return {model: models.count(model) for model in sorted(set(models))}


def hits(*starts: tuple[int, int]) -> tuple[StartShare, ...]:
    return tuple(StartShare(step, count) for step, count in starts)
