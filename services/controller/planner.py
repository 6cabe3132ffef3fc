"""From what the registry knows to the plan in force. Whatever an allocator does, the last good plan stands."""

import logging
from dataclasses import replace

from pentimento.domain.fleet import Plan, ReplicaKind, ServiceEndpoint
from pentimento.domain.generation import PlanVersion
from pentimento.policies.allocation import (
    AllocationContext,
    AllocationDecision,
    Allocator,
    ReplicaView,
    check_decision,
)
from services.controller.metrics import ALLOCATION_FAILURES, PLAN_SEQUENCE

logger = logging.getLogger(__name__)


class Planner:
    """Runs one allocator and numbers its plans; `plan` is None until the first."""

    def __init__(self, allocator: Allocator, allocator_name: str, leader_epoch: int) -> None:
        self._allocator = allocator
        self._name = allocator_name
        self._version = PlanVersion(leader_epoch, 0)
        self._decision = AllocationDecision()
        self._failing = False
        self.plan: Plan | None = None

    def rise_to(self, leader_epoch: int) -> None:
        """Changes state: the next plan is the first of a newer epoch, whatever it says."""
        self._version = PlanVersion(leader_epoch, 0)

    def replan(self, context: AllocationContext) -> Plan | None:
        """Changes state. The new plan if there is one; None while what is in force still holds."""
        decision = self._decide(replace(context, last=self._decision))
        if decision is None:
            return None
        self._decision = decision
        plan = self._as_plan(decision, context.replicas)
        if self.plan is not None and plan == replace(self.plan, version=plan.version) and self._version.sequence:
            return None
        self._version = replace(self._version, sequence=self._version.sequence + 1)
        self.plan = replace(plan, version=self._version)
        PLAN_SEQUENCE.set(self._version.sequence)
        return self.plan

    def _decide(self, context: AllocationContext) -> AllocationDecision | None:
        """None when the allocator raised or decided nonsense: counted, logged once, and the last good plan stands."""
        try:
            decision = self._allocator(context)
            check_decision(context, decision)
        except Exception:  # an allocator's defect must not take the fleet's plan away
            ALLOCATION_FAILURES.labels(self._name).inc()
            if not self._failing:
                logger.exception("allocator failed; the last good plan stands", extra={"allocator": self._name})
            self._failing = True
            return None
        self._failing = False
        return decision

    def _as_plan(self, decision: AllocationDecision, replicas: tuple[ReplicaView, ...]) -> Plan:
        return Plan(
            version=self._version,
            assignments=decision.assignments,
            pools=decision.pools,
            admission_rate=decision.admission_rate,
            endpoints=service_endpoints(replicas),
            allocator=self._name,
        )


def service_endpoints(replicas: tuple[ReplicaView, ...]) -> tuple[ServiceEndpoint, ...]:
    """Where the services other than the workers are reached, ordered by kind and instance id."""
    services = (view.replica for view in replicas if view.replica.kind is not ReplicaKind.UNET_WORKER)
    endpoints = (ServiceEndpoint(service.kind, service.instance_id, service.address) for service in services)
    return tuple(sorted(endpoints, key=lambda endpoint: (endpoint.kind.value, endpoint.instance_id)))
