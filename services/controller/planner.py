"""From what the registry knows to the plan in force.

Whatever an allocator does, some plan serves: the last good one, or the resident one where the policy lacks profiles or
has planned nothing that a live worker holds.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from pentimento.domain.adapters import Adapter
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import Plan, ReplicaKind, ServiceEndpoint, UnplannedModel
from pentimento.domain.generation import PlanVersion
from pentimento.domain.reasons import Reason
from pentimento.policies.component_placement import AskedShares, place_components
from pentimento.policies.light_stages import with_skip_bound
from pentimento.policies.plan.inputs import (
    Decision,
    PlanInput,
    ReplicaView,
    check_decision,
    decide,
    hold_resident,
)
from pentimento.policies.plan.registry import ServingPolicy
from pentimento.policies.registered_digests import (
    HeldDigests,
    as_unplanned,
    named_digests,
    notes_of,
    without_mismatched,
)
from pentimento.policies.serving.unplanned import unplanned_models
from services.controller.allocating import AllocatorThreads
from services.controller.metrics import ALLOCATION_FAILURES, MISMATCHED_WORKERS, PLAN_SEQUENCE, UNPLANNED_MODELS
from services.controller.placements import adapter_placements, uploaded_placements

logger = logging.getLogger(__name__)

RESIDENT_SERVES = "the workers keep the models that they hold"
SETTLING = ServingPolicy("resident", hold_resident, plans_batches=False, moves_models=False)


class Planner:
    """Runs a policy's allocator and numbers its plans; `plan` is None until the first.

    Until `begin`, every worker goes on with what it holds: a policy that decided on the half of a fleet that has
    registered so far would have models loaded for nothing.
    """

    def __init__(
        self, policy: ServingPolicy, leader_epoch: int, allocator_limit_s: float = 0.5, *, skip_light_below: float = 0.0
    ) -> None:
        """`skip_light_below`: the bound of cascades' first stages whose allocator decides on none."""
        self._skip_light_below = skip_light_below
        self._wanted = policy
        self._threads = AllocatorThreads(allocator_limit_s)
        self._policy = SETTLING
        self._version = PlanVersion(leader_epoch, 0)
        # What the last look found in force, and what it decided.
        self._before = self._decision = Decision()
        self._failing = False
        self.plan: Plan | None = None
        # What adapters were asked for, by which the popular ones are placed.
        self._asked = AskedShares()
        # LoRAs of the object store, which every plan names.
        self.uploaded: tuple[Adapter, ...] = ()
        # The repository's digests by name, and what workers were found to hold under these names.
        self.registered: Mapping[str, str] = {}
        self._held = HeldDigests()
        # What the policy leaves out at the last look, and why.
        self.unplanned: tuple[UnplannedModel, ...] = ()

    def rise_to(self, leader_epoch: int) -> None:
        """Changes state: the next plan is the first of a newer epoch, whatever it says."""
        self._version = PlanVersion(leader_epoch, 0)

    def follow(self, policy: ServingPolicy) -> None:
        """Changes state: that policy decides from the next look on. Another one than before has nothing to remember."""
        if policy.name != self._wanted.name:
            self._before = self._decision = Decision()
        if self.begun:
            self._policy = policy
        self._wanted = policy

    @property
    def begun(self) -> bool:
        return self._policy is self._wanted

    def begin(self) -> None:
        """Changes state: the policy decides from now on, at first with nothing to remember. Harmless when it does."""
        if not self.begun:
            self._policy = self._wanted
            self._before = self._decision = Decision()

    async def look(self, context: PlanInput) -> Plan | None:
        """Changes state: decide anew, from new demand. The new plan if there is one; None while what is in force still
        holds."""
        self._asked = self._asked.seen(context.demand)
        return await self._replan(context, self._decision)

    async def look_again(self, context: PlanInput) -> Plan | None:
        """Changes state. Likewise for the time and demand of the last look on the fleet as it is now: averages and
        integrals take each look in once, however often the fleet changes."""
        return await self._replan(context, self._before)

    async def _replan(self, context: PlanInput, last: Decision) -> Plan | None:
        named = named_digests(context, self.registered)
        self._held = self._held.seen(context.replicas)
        mismatched = self._held.mismatched(self.registered)
        context = without_mismatched(context, mismatched)
        self._note_unplanned(context, as_unplanned(mismatched))
        asked = self._policy.name
        decided = await self._decide(replace(context, last=last))
        if decided is None or self._policy.name != asked:
            # A policy that took over meanwhile could not read what another one remembers.
            return None
        policy, decision = decided
        self._before, self._decision = last, decision
        plan = self._as_plan(policy, self._placing(policy, decision, context.replicas), context.replicas)
        plan = replace(plan, registered=named, notes=(*plan.notes, *notes_of(mismatched)))
        if self.plan is not None and plan == replace(self.plan, version=plan.version) and self._version.sequence:
            return None
        self._version = replace(self._version, sequence=self._version.sequence + 1)
        self.plan = replace(plan, version=self._version)
        PLAN_SEQUENCE.set(self._version.sequence)
        return self.plan

    async def _decide(self, context: PlanInput) -> tuple[ServingPolicy, Decision] | None:
        """Return the decision with the policy that made it: the resident one where the policy in force cannot plan.
        None where the allocator raised, hung or decided nonsense and the last good plan stands."""
        try:
            decision = await self._threads.decide(partial(decide, self._policy.allocator), context)
            check_decision(context, decision)
        except Exception as error:  # an allocator's defect must not take the fleet's plan away
            lacks = isinstance(error, FailedPrecondition) and error.reason == Reason.PROFILE_MISSING
            lacking = str(error) if lacks else ""
            self._note_failure(lacking)
            if not lacking and self._stands(context):
                return None
            note = f"{self._policy.name} cannot plan ({lacking or 'its allocator failed'}): {RESIDENT_SERVES}"
            plan = replace(hold_resident(context).plan, notes=(note,))
            return SETTLING, Decision(plan, context.last.memory)
        self._failing = False
        return self._policy, decision

    def _note_failure(self, lacking: str) -> None:
        """Count a failure, and log the first of several in a row. `lacking`: what the policy needs and has not."""
        name = self._policy.name
        ALLOCATION_FAILURES.labels(name).inc()
        if not self._failing and lacking:
            logger.warning(
                "the policy cannot plan; the resident plan applies", extra={"allocator": name, "why": lacking}
            )
        elif not self._failing:
            logger.exception("allocator failed; the last good plan applies", extra={"allocator": name})
        self._failing = True

    def _stands(self, context: PlanInput) -> bool:
        """Return whether the plan in force is the policy's own and a live worker holds a part of it."""
        if self.plan is None or self.plan.allocator != self._policy.name:
            return False
        live = {(worker.instance_id, worker.generation) for worker in context.workers()}
        held = {(one.worker_id, one.generation) for one in self.plan.assignments}
        return not live or not live.isdisjoint(held)

    def _note_unplanned(self, context: PlanInput, mismatched: tuple[UnplannedModel, ...]) -> None:
        """Say which models are in nobody's plan, and which workers: once in the log, and in metrics as long as it is
        so."""
        lacking = unplanned_models(context) if self._wanted.plans_batches else ()
        if lacking and not set(lacking) <= set(self.unplanned):
            told = [f"{one.model} on {one.device or 'any device'}: {one.reason}" for one in lacking]
            logger.warning("models without a profile are not planned", extra={"models": told})
        if mismatched and not set(mismatched) <= set(self.unplanned):
            told = [f"{one.worker_id}: {one.model}" for one in mismatched]
            logger.error("workers hold other digests than are registered, and are not planned", extra={"workers": told})
        self.unplanned = (*mismatched, *lacking)
        UNPLANNED_MODELS.set(len(lacking))
        MISMATCHED_WORKERS.set(len({one.worker_id for one in mismatched}))

    def _placing(self, policy: ServingPolicy, decision: Decision, replicas: tuple[ReplicaView, ...]) -> Plan:
        """Changes state: the plan with popular adapters placed, where its policy plans at all and has not placed
        any itself."""
        if not policy.moves_models or decision.plan.components:
            return decision.plan
        uploaded = [adapter.name for adapter in self.uploaded]
        found = place_components(self._asked, replicas, decision.plan.assignments, uploaded)
        self._asked = found.shares
        return replace(decision.plan, components=found.components, assignments=found.assignments)

    def _as_plan(self, policy: ServingPolicy, plan: Plan, replicas: tuple[ReplicaView, ...]) -> Plan:
        return replace(
            plan,
            version=self._version,
            allocator=policy.name,
            cascades=with_skip_bound(plan.cascades, self._skip_light_below),
            cache=self._wanted.cache_plan(plan.cache),
            endpoints=service_endpoints(replicas),
            drops_late=policy.drops_late,
            moves_models=policy.moves_models,
            placements=adapter_placements(replicas) + uploaded_placements(self.uploaded, replicas),
        )


def service_endpoints(replicas: tuple[ReplicaView, ...]) -> tuple[ServiceEndpoint, ...]:
    """Where the services other than the workers are reached, ordered by kind and instance id."""
    services = (view.replica for view in replicas if view.replica.kind is not ReplicaKind.UNET_WORKER)
    endpoints = (
        ServiceEndpoint(service.kind, service.instance_id, service.address, service.available_models)
        for service in services
    )
    return tuple(sorted(endpoints, key=lambda endpoint: (endpoint.kind.value, endpoint.instance_id)))
