"""The controller in virtual time: the frontdoor and the workers report to it, and it makes plans as the live one."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from lab.emulation.device import EmulatedDevice
from pentimento.dataplane import Dataplane
from pentimento.dataplane.demand_report import DemandReport, StartCounts
from pentimento.dataplane.events import AttemptKey
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import Capability, Plan, Replica, ReplicaKind, ReplicaReport
from pentimento.domain.generation import PlanVersion
from pentimento.domain.weights import ModelChange, SwitchWay
from pentimento.policies.plan.component_placement import ComponentUses
from pentimento.policies.plan.demand import DemandWindow
from pentimento.policies.plan.inputs import AllocationProfile, Decision, PlanInput, ReplicaView
from pentimento.policies.plan.maker import FleetFacts, make_plan, numbered
from pentimento.policies.plan.registry import ServingPolicy

# Plans and seconds without progress after which the simulation fails: no policy remembers or waits that long.
_STILL_PLANS = 10
_STILL_S = 3_600.0
_STEP_BATCHING = frozenset({Capability.STEP_BATCHING})
# How devices change models that have a `swap`.
_AHEAD = ModelChange("", SwitchWay.STAGED, 0, 0, 0)
_FRONTDOOR = Replica("frontdoor", ReplicaKind.FRONTDOOR, "simulated:frontdoor", 1)


class SimulatedController:
    """`devices` are the fleet, `available` the models that a type of device can hold, `profiles` what they cost.
    `starts` counts, for the next report, where requests start and what compared images kept. `reports` adds a worker's
    report of its components."""

    def __init__(
        self,
        policy: ServingPolicy,
        dataplane: Dataplane,
        devices: Mapping[str, EmulatedDevice[AttemptKey]],
        available: Mapping[str, tuple[str, ...]],
        profiles: tuple[AllocationProfile, ...],
        reports: Callable[[Replica, EmulatedDevice[AttemptKey]], ReplicaView],
    ) -> None:
        self.starts = StartCounts()
        self._policy = policy
        self._state = dataplane.state
        self._devices = devices
        self._available = available
        self._profiles = profiles
        self._reports = reports
        self._uses = ComponentUses()
        self._demand = DemandReport(dataplane, self.starts)
        self._window = DemandWindow()
        self._late: Counter[str] = Counter()
        self._reported_s = 0.0
        self._reported: ReplicaReport | None = None
        self._decision = Decision()
        # The input of the last plan.
        self.given = PlanInput(0.0, ())
        self._plan = Plan(PlanVersion(1, 0))
        # When anything moved, and how often the policy was asked since.
        self._moved_s = 0.0
        self._still_count = 0

    def count_late(self, pool: str) -> None:
        """Count an image of that pool that missed its SLO, which may differ from the dataplane's deadline."""
        self._late[pool] += 1

    def report(self, now_s: float) -> None:
        """Changes state: the frontdoor and every worker report."""
        covered_s, self._reported_s = now_s - self._reported_s, now_s
        report = self._demand.added_to(ReplicaReport(_FRONTDOOR.instance_id, _FRONTDOOR.generation))
        self._demand.answered()
        demand = tuple(replace(one, late_count=self._late.pop(one.pool or one.model, 0)) for one in report.demand)
        self._reported = replace(report, demand=demand)
        self._window.add(self._reported, covered_s)
        for device in self._devices.values():
            if not device.lost:
                queued = ReplicaReport(device.worker_id, 1, (device.model,), device.waiting_count)
                self._window.add(queued, covered_s)

    def plan(self, now_s: float, moves: bool = True) -> Plan | None:
        """Return the next plan, or None if it equals the last one. A policy's exception is a defect of the scenario
        and ends the simulation, unlike a live one. `moves`: whether events other than plans are due. Raises
        FailedPrecondition naming the waiting requests if no plan makes progress."""
        self._check_moving(now_s, moves)
        self.report(now_s)
        replicas = self._replicas()
        given = PlanInput(now_s, replicas, self._window.take(replicas), self._profiles, self._decision)
        self.given = given
        made = make_plan(self._policy, given, FleetFacts(uses=self._uses.seen(given.demand)))
        self._decision, self._uses = made.decision, made.uses
        plan = numbered(made.plan, self._plan)
        self._plan = plan or self._plan
        return plan

    def _check_moving(self, now_s: float, moves: bool) -> None:
        if moves:
            self._moved_s, self._still_count = now_s, 0
        self._still_count += 1
        if self._still_count > _STILL_PLANS and now_s - self._moved_s > _STILL_S:
            waiting = {pool.name: pool.waiting_count for pool in self._state.pools.values() if pool.waiting_count}
            counts = ", ".join(f"{count} for {name}" for name, count in sorted(waiting.items()))
            message = f"requests wait, and no plan of {self._policy.name} gives them a worker"
            raise FailedPrecondition("STANDSTILL", f"{message}: {counts or 'in no queue'}")

    def _replicas(self) -> tuple[ReplicaView, ...]:
        workers = [
            (
                device,
                Replica(
                    instance_id=device.worker_id,
                    kind=ReplicaKind.UNET_WORKER,
                    address=f"simulated:{device.worker_id}",
                    generation=1,
                    device=device.kind,
                    available_models=self._available[device.kind],
                    resident_models=(device.model,),
                    capabilities=_STEP_BATCHING if device.batches_steps else frozenset(),
                    change=_AHEAD if device.costs.swap is not None else None,
                ),
            )
            for device in self._devices.values()
            if not device.lost and not device.retiring
        ]
        return (ReplicaView(_FRONTDOOR, self._reported), *(self._reports(worker, device) for device, worker in workers))
