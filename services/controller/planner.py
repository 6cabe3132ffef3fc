"""Make the plan in force from the live fleet and its demand.

If a policy fails, its last good plan stays. If it lacks profiles, or no live worker holds a part of that plan, workers
keep their models.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from pentimento.domain.adapters import Adapter
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import MAX_TOLD_COUNT, Plan, UnplannedModel
from pentimento.domain.generation import PlanVersion
from pentimento.domain.reasons import Reason
from pentimento.policies.plan.component_placement import ComponentUses
from pentimento.policies.plan.inputs import Decision, PlanInput
from pentimento.policies.plan.maker import FleetFacts, MadePlan, keeps_models, make_plan, numbered, unprofiled_models
from pentimento.policies.plan.registry import ServingPolicy
from pentimento.policies.registered_digests import HeldDigests, as_unplanned, without_mismatched
from services.controller.allocating import AllocatorThreads
from services.controller.metrics import ALLOCATION_FAILURES, MISMATCHED_WORKERS, PLAN_SEQUENCE, UNPLANNED_MODELS

logger = logging.getLogger(__name__)

# Reasons why a policy cannot plan until the fleet changes.
_LACKING = (Reason.PROFILE_MISSING, Reason.DISCRIMINATOR_UNINFORMATIVE)

# Time limit of a decision; beyond it the last good plan applies.
ALLOCATOR_LIMIT_S = 0.5

RESIDENT_SERVES = "the workers keep the models that they hold"


class Planner:
    """Call a policy within a time limit and number its plans. `plan` is None until the first one.

    Until `begin`, every worker keeps its model: a policy that sees only the replicas registered so far would make
    workers load models in vain.
    """

    def __init__(
        self,
        policy: ServingPolicy,
        leader_epoch: int,
        allocator_limit_s: float = ALLOCATOR_LIMIT_S,
        scaled: tuple[str, ...] = (),
    ) -> None:
        """Start without a plan. `scaled`: models that every plan names, also without a worker."""
        self.scaled = scaled
        self._policy = policy
        self._threads = AllocatorThreads(allocator_limit_s)
        self._epoch = leader_epoch
        self.begun = False
        # The decision in force before the last round, and the last round's own.
        self._before = self.decision = Decision()
        self._failing = False
        self.plan: Plan | None = None
        # Uses of ControlNets and LoRAs, to place the popular ones.
        self._uses = ComponentUses()
        # LoRAs of the object store, which every plan names.
        self.uploaded: tuple[Adapter, ...] = ()
        # The repository's digests by name, and the digests that workers hold under the same names.
        self.registered: Mapping[str, str] = {}
        self._held = HeldDigests()
        # Models that the policy could not plan in the last round, with reasons.
        self.unplanned: tuple[UnplannedModel, ...] = ()

    def rise_to(self, leader_epoch: int) -> None:
        """Make the next plan the first of a newer epoch, even if it is unchanged. Changes state."""
        self._epoch = leader_epoch

    def follow(self, policy: ServingPolicy) -> None:
        """Use that policy from the next round on. Changes state. A policy of another name starts without memory."""
        if policy.name != self._policy.name:
            self._before = self.decision = Decision()
        self._policy = policy

    def begin(self) -> None:
        """Let the policy decide from now on, at first without memory. Changes state; later calls have no effect."""
        if not self.begun:
            self.begun = True
            self._before = self.decision = Decision()

    async def look(self, given: PlanInput) -> Plan | None:
        """Decide by new demand. Changes state. Return the new plan; None if the plan in force stays."""
        self._uses = self._uses.seen(given.demand)
        return await self._replan(given, self.decision)

    async def look_again(self, given: PlanInput) -> Plan | None:
        """Decide by the present fleet, with the last round's time and demand. Changes state; returns like `look`. The
        policy's memory counts each round once, however often the fleet changes."""
        return await self._replan(given, self._before)

    def most_used(self, model: str) -> list[Adapter]:
        """Return the uploaded LoRAs that requests use with a model, the most used first."""
        uploaded = {adapter.name: adapter for adapter in self.uploaded}
        return [uploaded[name] for name in self._uses.most_used(model) if name in uploaded][:MAX_TOLD_COUNT]

    @property
    def assigned(self) -> Mapping[str, str]:
        """Return the model of each worker in the newest plan."""
        return {one.worker_id: one.model for one in self.plan.assignments} if self.plan is not None else {}

    @property
    def follows_queues(self) -> bool:
        """Return whether the policy decides by the present queues."""
        return self._in_force.follows_queues

    @property
    def _in_force(self) -> ServingPolicy:
        return self._policy if self.begun else keeps_models(self._policy)

    async def _replan(self, given: PlanInput, last: Decision) -> Plan | None:
        self._held = self._held.seen(given.replicas)
        mismatched = self._held.mismatched(self.registered)
        facts = FleetFacts(self.registered, mismatched, self.uploaded, self._uses, self.scaled)
        seen = without_mismatched(given, mismatched)
        self._note_unplanned(seen, as_unplanned(mismatched))
        policy = self._in_force
        made = await self._make(policy, replace(given, last=last), facts)
        if made is None or self._in_force.name != policy.name:
            # The policy was replaced during the call, and its successor could not read this memory.
            return None
        self._before, self.decision, self._uses = last, made.decision, made.uses
        before = self.plan
        if before is None or before.version.leader_epoch != self._epoch:
            before = Plan(PlanVersion(self._epoch, 0))
        if (new := numbered(made.plan, before)) is not None:
            self.plan = new
            PLAN_SEQUENCE.set(new.version.sequence)
        return new

    async def _make(self, policy: ServingPolicy, given: PlanInput, facts: FleetFacts) -> MadePlan | None:
        """Return the policy's plan, or a plan that keeps the workers' models if it cannot plan. None if it raised, hung
        or decided an invalid plan, and its last good plan stays."""
        try:
            made = await self._threads.run(partial(make_plan, policy, given, facts))
        except Exception as error:  # a policy's defect must not remove the fleet's plan
            lacks = isinstance(error, FailedPrecondition) and error.reason in _LACKING
            lacking = str(error) if lacks else ""
            self._note_failure(policy.name, lacking)
            if not lacking and self._stands(policy.name, given):
                return None
            note = f"{policy.name} cannot plan ({lacking or 'its allocator failed'}): {RESIDENT_SERVES}"
            return make_plan(keeps_models(policy, note), given, facts)
        self._failing = False
        return made

    def _note_failure(self, name: str, lacking: str) -> None:
        """Count a failure, and log the first of several in a row. `lacking`: what the policy misses: a profile, or a
        discriminator that carries information."""
        ALLOCATION_FAILURES.labels(name).inc()
        if not self._failing and lacking:
            logger.warning(
                "the policy cannot plan; the resident plan applies", extra={"allocator": name, "why": lacking}
            )
        elif not self._failing:
            logger.exception("allocator failed; the last good plan applies", extra={"allocator": name})
        self._failing = True

    def _stands(self, name: str, given: PlanInput) -> bool:
        """Return whether the plan in force is the policy's own and a live worker holds a part of it."""
        if self.plan is None or self.plan.allocator != name:
            return False
        live = {(worker.instance_id, worker.generation) for worker in given.workers()}
        held = {(one.worker_id, one.generation) for one in self.plan.assignments}
        return not live or not live.isdisjoint(held)

    def _note_unplanned(self, seen: PlanInput, mismatched: tuple[UnplannedModel, ...]) -> None:
        """Log each set of unplanned models and workers once, and set their metrics."""
        lacking = unprofiled_models(seen) if self._policy.plans_batches else ()
        if lacking and not set(lacking) <= set(self.unplanned):
            models = [f"{one.model} on {one.device or 'any device'}: {one.reason}" for one in lacking]
            logger.warning("models without a profile are not planned", extra={"models": models})
        if mismatched and not set(mismatched) <= set(self.unplanned):
            workers = [f"{one.worker_id}: {one.model}" for one in mismatched]
            logger.error("workers hold other digests than registered, and are not planned", extra={"workers": workers})
        self.unplanned = (*mismatched, *lacking)
        UNPLANNED_MODELS.set(len(lacking))
        MISMATCHED_WORKERS.set(len({one.worker_id for one in mismatched}))
