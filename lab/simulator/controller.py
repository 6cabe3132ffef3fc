"""The controller in virtual time: reads the dataplane's counts, asks the policy's allocator, numbers its plans."""

from collections import Counter
from dataclasses import dataclass, replace

from lab.emulation.device import EmulatedDevice
from pentimento.dataplane import Dataplane
from pentimento.dataplane.events import AttemptKey
from pentimento.dataplane.pools import Pool
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import CONFIDENCE_BINS, Capability, Plan, Replica, ReplicaKind, StartShare
from pentimento.domain.generation import PlanVersion
from pentimento.domain.kept_quality import NOTHING_KEPT, KeptQuality
from pentimento.domain.thinned_steps import NO_STEPS, ThinnableSteps
from pentimento.policies.plan.inputs import (
    AllocationProfile,
    Decision,
    ModelDemand,
    PlanInput,
    Policy,
    ReplicaView,
    check_decision,
    decide,
)

# Plans and seconds without progress after which the simulation fails: no policy remembers or waits that long.
_STILL_PLANS = 10
_STILL_S = 3_600.0
_STEP_BATCHING = frozenset({Capability.STEP_BATCHING})


@dataclass(frozen=True)
class _PoolCounts:
    """Counts of a pool at the last look."""

    arrived: int = 0
    violated: int = 0
    scored: int = 0
    deferred: int = 0
    stood_in: int = 0
    confidences: tuple[int, ...] = ()
    thinnable: ThinnableSteps = NO_STEPS


class SimulatedController:
    """`devices` are the fleet, `available` the models that a kind of device can hold, `profiles` what they cost."""

    def __init__(
        self,
        allocator: Policy,
        name: str,
        devices: dict[str, EmulatedDevice[AttemptKey]],
        available: dict[str, tuple[str, ...]],
        profiles: tuple[AllocationProfile, ...],
    ) -> None:
        self._allocator = allocator
        self._name = name
        self._devices = devices
        self._available = available
        self._profiles = profiles
        self._decision = Decision()
        self._reported: dict[str, _PoolCounts] = {}
        self._starts: dict[str, Counter[StartShare]] = {}
        self._late: Counter[str] = Counter()
        self._compared: dict[str, list[KeptQuality]] = {}
        self._queues: Counter[str] = Counter()
        self._looks = 0
        self._last_s = 0.0
        self._sequence = 0
        # When anything moved, and how often the policy was asked since.
        self._moved_s = 0.0
        self._still_count = 0
        # Counts by the pools of all plans.
        self._models: dict[str, str] = {}

    def count_start(self, pool: str, start: StartShare) -> None:
        """Changes state: a request of that pool starts there."""
        self._starts.setdefault(pool, Counter())[start] += 1

    def count_late(self, pool: str) -> None:
        """Count an image of that pool that missed its SLO, which may differ from the dataplane's deadline."""
        self._late[pool] += 1

    def count_compared(self, pool: str, confidence: float, kept: float) -> None:
        """Changes state: a light image of that pool was compared with the heavy model's."""
        parts = self._compared.setdefault(pool, [NOTHING_KEPT] * CONFIDENCE_BINS)
        parts[min(int(confidence * CONFIDENCE_BINS), CONFIDENCE_BINS - 1)] += KeptQuality.of(kept)

    def look(self, dataplane: Dataplane) -> None:
        """Changes state: notes how many wait, for the average that the next plan goes by."""
        at_workers = self._waiting_at_workers()
        for pool in dataplane.state.pools.values():
            self._queues[pool.name] += pool.waiting_count + at_workers[pool.name]
        self._looks += 1

    def plan(self, now_s: float, dataplane: Dataplane, moves: bool = True) -> Plan | None:
        """Return the next plan, or None if it equals the last one. An allocator's exception is a defect of the scenario
        and ends the simulation, unlike a live one. `moves`: whether events other than plans are due. Raises
        FailedPrecondition naming the waiting requests if no plan makes progress."""
        self._check_moving(now_s, dataplane, moves)
        window_s = now_s - self._last_s
        self.look(dataplane)
        waiting = self._waiting_at_workers()
        pools = dataplane.state.pools.values()
        demand = tuple(self._demand(pool, window_s, waiting[pool.name]) for pool in pools)
        self._last_s = now_s
        self._queues.clear()
        self._looks = 0
        context = PlanInput(now_s, self._replicas(), demand, self._profiles, self._decision)
        decision = decide(self._allocator, context)
        check_decision(context, decision)
        same = decision.plan == self._decision.plan
        self._decision = decision
        self._models.update((pool.pool, pool.model) for pool in decision.plan.pools)
        if same and self._sequence:
            return None
        self._sequence += 1
        return replace(decision.plan, version=PlanVersion(1, self._sequence), allocator=self._name)

    def _check_moving(self, now_s: float, dataplane: Dataplane, moves: bool) -> None:
        if moves:
            self._moved_s, self._still_count = now_s, 0
        self._still_count += 1
        if self._still_count > _STILL_PLANS and now_s - self._moved_s > _STILL_S:
            waiting = {pool.name: pool.waiting_count for pool in dataplane.state.pools.values() if pool.waiting_count}
            told = ", ".join(f"{count} for {name}" for name, count in sorted(waiting.items()))
            message = f"requests wait, and no plan of {self._name} gives them a worker: {told or 'in no queue'}"
            raise FailedPrecondition("STANDSTILL", message)

    def _demand(self, pool: Pool, window_s: float, at_workers: int) -> ModelDemand:
        before = self._reported.get(pool.name, _PoolCounts())
        violated = pool.dropped_count + self._late[pool.name]
        confidences = tuple(pool.confidences)
        judged = (pool.scored_count, pool.deferred_count, pool.stood_in_count)
        now = _PoolCounts(pool.arrived_count, violated, *judged, confidences, pool.thinnable)
        self._reported[pool.name] = now
        starts = self._starts.pop(pool.name, Counter())
        scored, deferred = now.scored - before.scored, now.deferred - before.deferred
        sent_on = deferred + now.stood_in - before.stood_in
        return ModelDemand(
            model=self._models.get(pool.name, pool.name),
            arrivals_per_s=(now.arrived - before.arrived) / window_s if window_s > 0 else 0.0,
            queue_length=pool.waiting_count + at_workers,
            starts=tuple(replace(start, request_count=count) for start, count in sorted(starts.items(), key=_order_of)),
            deferred_share=deferred / scored if scored else 0.0,
            violation_count=now.violated - before.violated,
            mean_queue_length=self._queues[pool.name] / self._looks,
            sent_on_per_s=sent_on / window_s if window_s > 0 else 0.0,
            confidences=tuple(
                count - told
                for count, told in zip(confidences, before.confidences or (0,) * len(confidences), strict=True)
            ),
            thinnable=now.thinnable.since(before.thinnable),
            compared=tuple(self._compared.pop(pool.name, ())),
        )

    def _waiting_at_workers(self) -> Counter[str]:
        """Return the requests that wait at workers, by model."""
        waiting = Counter[str]()
        for device in self._devices.values():
            waiting[device.costs.model] += device.waiting_count
        return waiting

    def _replicas(self) -> tuple[ReplicaView, ...]:
        return tuple(
            ReplicaView(
                Replica(
                    instance_id=device.worker_id,
                    kind=ReplicaKind.UNET_WORKER,
                    address=f"simulated:{device.worker_id}",
                    generation=1,
                    device=device.kind,
                    available_models=self._available[device.kind],
                    resident_models=(device.model,),
                    capabilities=_STEP_BATCHING if device.batches_steps else frozenset(),
                )
            )
            for device in self._devices.values()
            if not device.lost
        )


def _order_of(counted: tuple[StartShare, int]) -> tuple[int, str, int, str]:
    start, _ = counted
    return (start.start_step, start.kind, start.step_count, start.model)
