"""Make a whole plan from a policy's decision. Pure: the controller and the simulator call the same function."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pentimento.domain.adapters import Adapter
from pentimento.domain.fleet import (
    AdapterPlacement,
    Capability,
    Plan,
    PoolPlan,
    ReplicaKind,
    ServiceEndpoint,
    UnplannedModel,
    WorkerAssignment,
)
from pentimento.domain.reasons import Reason
from pentimento.policies.plan.component_placement import ComponentUses, place_components
from pentimento.policies.plan.inputs import UNNUMBERED, Decision, PlanInput, ReplicaView, decide, hold_resident
from pentimento.policies.plan.registry import ServingPolicy
from pentimento.policies.plan_checks import check_plan
from pentimento.policies.registered_digests import Held, named_digests, notes_of, without_mismatched


@dataclass(frozen=True)
class FleetFacts:
    """Describe the fleet to a plan, apart from its policy's decision.

    `registered`: digests of the model repository, by name. `mismatched`: workers that hold another digest under such a
    name, as `HeldDigests.mismatched` returns them; they are not planned. `uploaded`: LoRAs of the object store.
    `uses`: of ControlNets and LoRAs, to place the popular ones. `scaled`: models that an autoscaler starts on demand;
    each has a pool, if need be without workers, so that requests wait for it.
    """

    registered: Mapping[str, str] = field(default_factory=dict)
    mismatched: Mapping[Held, str] = field(default_factory=dict)
    uploaded: tuple[Adapter, ...] = ()
    uses: ComponentUses = field(default_factory=ComponentUses)
    scaled: tuple[str, ...] = ()


@dataclass(frozen=True)
class MadePlan:
    """Hold a plan without a version, the decision for the policy's next round, and `FleetFacts.uses` with the placed
    components."""

    plan: Plan
    decision: Decision
    uses: ComponentUses


def make_plan(policy: ServingPolicy, given: PlanInput, facts: FleetFacts = FleetFacts()) -> MadePlan:
    """Return the policy's plan for that input. Raises ValueError and InvalidArgument for an invalid decision
    (`check_decision`), and the policy's own errors."""
    seen = without_mismatched(given, facts.mismatched)
    decision = decide(policy.allocator, seen)
    check_decision(seen, decision)
    decided, uses = decision.plan, facts.uses
    if not decided.components:
        placed = place_components(uses, seen.replicas, decided.assignments, facts.uploaded)
        decided = replace(decided, components=placed.components, assignments=placed.assignments)
        uses = placed.uses
    plan = replace(
        decided,
        version=UNNUMBERED,
        allocator=policy.name,
        pools=with_pools_for(facts.scaled, decided.pools),
        endpoints=service_endpoints(seen.replicas),
        drops_late=policy.drops_late,
        moves_models=policy.moves_models,
        placements=(*_reported_placements(seen.replicas), *_uploaded_placements(facts.uploaded, seen.replicas)),
        cache=policy.cache_plan(decided.cache),
        registered=named_digests(given, facts.registered),
        notes=(*decided.notes, *notes_of(facts.mismatched)),
    )
    return MadePlan(plan, decision, uses)


def check_decision(context: PlanInput, decision: Decision) -> None:
    """Raise ValueError for workers that are absent or cannot hold their model, and InvalidArgument for an invalid plan
    (`check_plan`)."""
    _check_assignments(context, decision.plan.assignments)
    check_plan(decision.plan)
    assigned = {assignment.worker_id for assignment in decision.plan.assignments}
    for pool in decision.plan.pools:
        if strangers := set(pool.worker_ids) - assigned:
            raise ValueError(f"pool {pool.pool} names unassigned workers {sorted(strangers)}")


def _check_assignments(context: PlanInput, assignments: tuple[WorkerAssignment, ...]) -> None:
    workers = {worker.instance_id: worker for worker in context.workers()}
    for assignment in assignments:
        worker = workers.get(assignment.worker_id)
        if worker is None or worker.generation != assignment.generation or worker.address != assignment.address:
            raise ValueError(f"worker {assignment.worker_id} is not the live one")
        if assignment.model not in worker.models:
            raise ValueError(f"worker {assignment.worker_id} cannot serve {assignment.model}")


def keeps_models(policy: ServingPolicy, note: str = "") -> ServingPolicy:
    """Return a policy that lets every worker keep its model, with the cache rules and memory of `policy`. `note` states
    the reason in the plan."""

    def hold(given: PlanInput) -> Decision:
        held = hold_resident(given).plan
        return Decision(replace(held, notes=(note,) if note else ()), given.last.memory)

    return ServingPolicy(
        "resident", hold, policy.cache, policy.eviction, policy.cache_hits, plans_batches=False, moves_models=False
    )


def numbered(plan: Plan, last: Plan | None) -> Plan | None:
    """Return the plan with the version after the last one's; None if it is unchanged. The plan is the first if `last`
    is None or has the sequence 0."""
    before = last.version if last is not None else UNNUMBERED
    if last is not None and before.sequence and replace(plan, version=before) == last:
        return None
    return replace(plan, version=replace(before, sequence=before.sequence + 1))


def unprofiled_models(given: PlanInput) -> tuple[UnplannedModel, ...]:
    """Return the models that workers could hold but that have no profile on their type of device, ordered by name and
    device. Policies that plan by profiles never assign them."""
    profiled = {(profile.model, profile.device) for profile in given.profiles}
    there = {(model, worker.device) for worker in given.workers() for model in worker.models}
    lacking = sorted(pair for pair in there if not profiled & {pair, (pair[0], "")})
    return tuple(UnplannedModel(model, device, Reason.PROFILE_MISSING) for model, device in lacking)


def with_pools_for(models: Iterable[str], pools: tuple[PoolPlan, ...]) -> tuple[PoolPlan, ...]:
    """Return the pools, and one without workers for each of the models that has none."""
    there = {pool.model for pool in pools} | {pool.pool for pool in pools}
    return (*pools, *(PoolPlan(model, model, ()) for model in dict.fromkeys(models) if model not in there))


def service_endpoints(replicas: tuple[ReplicaView, ...]) -> tuple[ServiceEndpoint, ...]:
    """Return the endpoints of all services except the workers, ordered by kind and instance id."""
    services = (view.replica for view in replicas if view.replica.kind is not ReplicaKind.UNET_WORKER)
    endpoints = (
        ServiceEndpoint(service.kind, service.instance_id, service.address, service.available_models)
        for service in services
    )
    return tuple(sorted(endpoints, key=lambda endpoint: (endpoint.kind.value, endpoint.instance_id)))


def _reported_placements(replicas: tuple[ReplicaView, ...]) -> tuple[AdapterPlacement, ...]:
    """Place each adapter on the replicas that report it, ordered by kind, name and digest. The same name with other
    weights is another adapter."""
    there: defaultdict[Adapter, list[ReplicaView]] = defaultdict(list)
    for view in sorted(replicas, key=lambda view: view.replica.instance_id):
        for adapter in view.replica.adapters:
            there[adapter].append(view)
    ordered = sorted(there, key=lambda adapter: (adapter.kind.value, adapter.name, adapter.digest, repr(adapter)))
    return tuple(_placement(adapter, there[adapter]) for adapter in ordered)


def _uploaded_placements(
    uploaded: tuple[Adapter, ...], replicas: tuple[ReplicaView, ...]
) -> tuple[AdapterPlacement, ...]:
    """Place each LoRA of the object store on every worker that can load uploaded LoRAs."""
    there = sorted(replicas, key=lambda view: view.replica.instance_id)
    loading = [view for view in there if Capability.UPLOADED_LORA in view.replica.capabilities]
    return tuple(_placement(adapter, loading) for adapter in uploaded)


def _placement(adapter: Adapter, views: list[ReplicaView]) -> AdapterPlacement:
    resident = (view for view in views if adapter.name in view.replica.resident_models)
    return AdapterPlacement(
        adapter,
        tuple(view.replica.instance_id for view in views),
        tuple(view.replica.instance_id for view in resident),
    )
