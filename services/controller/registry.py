"""Track the live replicas by lease. Soft state: after a restart their registrations and reports rebuild it.

Times are monotonic seconds and come as arguments.
"""

import math
from dataclasses import dataclass, replace

from pentimento.domain.components import Tier
from pentimento.domain.errors import FailedPrecondition, NotFound, ResourceExhausted
from pentimento.domain.fleet import Replica, ReplicaKind, ReplicaReport, ReplicaStatus
from pentimento.domain.reasons import Reason
from pentimento.policies.plan.inputs import ReplicaView

MAX_REPLICAS = 4096
# Time that a silent replica stays visible in the fleet.
RETENTION_S = 60.0
# Seconds after a replica finished a request until its costs are old.
WORKED_S = 60.0
# Fields of a report that the status repeats.
_REPORTED = ("draining", "queue_length", "running_count", "busy_share", "completed_count", "failed_count")


@dataclass(frozen=True)
class _RegisteredReplica:
    """Hold a replica. `received_s`: start of its silence, later after a pause; `heard_s`: time of its last call;
    `worked_s`: time of the last report of a new finished request."""

    replica: Replica
    received_s: float
    heard_s: float
    report: ReplicaReport | None = None
    # Digests of the components on its disk.
    held: frozenset[str] = frozenset()
    worked_s: float = -math.inf


@dataclass(frozen=True)
class ReceivedReport:
    """Hold whether the plan depends on the change, and the seconds since the replica's last call."""

    changed: bool
    covered_s: float


class Registry:
    """Hold at most `capacity` replicas. A replica silent for `lease_s` is not live; after RETENTION_S it is dropped."""

    def __init__(self, lease_s: float, capacity: int = MAX_REPLICAS) -> None:
        self.lease_s = lease_s
        self._capacity = capacity
        self._entries: dict[str, _RegisteredReplica] = {}

    def register(self, replica: Replica, now_s: float) -> None:
        """Add or replace a replica. Changes state. Of two live replicas with one instance id or one address, the later
        start replaces the earlier one, which is rejected with FailedPrecondition."""
        known = self._entries.get(replica.instance_id)
        if known and self._is_live(known, now_s) and _outranks(known.replica, replica):
            raise _superseded(replica.instance_id, replica.generation, known.replica)
        self._take_address(replica, now_s)
        if known is None:
            self._make_room(now_s)
        # A second registration of the same start keeps its last report.
        is_same = known is not None and known.replica.generation == replica.generation
        before = known if known is not None and is_same else _RegisteredReplica(replica, now_s, now_s)
        self._entries[replica.instance_id] = replace(before, replica=replica, received_s=now_s, heard_s=now_s)

    def report(self, report: ReplicaReport, now_s: float) -> ReceivedReport:
        """Apply a report. Changes state. Raises as `require`; NotFound makes the replica register."""
        known = self.require(report.instance_id, report.generation)
        resident, digest = report.resident_models, report.held_model_digest
        replica = replace(known.replica, resident_models=resident, held_model_digest=digest)
        changed = _planned_by(replica) != _planned_by(known.replica) or _is_draining(known) != report.draining
        changed = changed or not self._is_live(known, now_s)
        held = _held_after(known.held, report)
        finished_count = known.report.completed_count if known.report is not None else 0
        worked_s = now_s if report.completed_count > finished_count else known.worked_s
        self._entries[report.instance_id] = _RegisteredReplica(replica, now_s, now_s, report, held, worked_s)
        return ReceivedReport(changed, max(0.0, now_s - known.heard_s))

    def require(self, instance_id: str, generation: int) -> _RegisteredReplica:
        """Return the entry of that start. Raises NotFound if it is not registered, FailedPrecondition if a later start
        is."""
        known = self._entries.get(instance_id)
        if known is None or known.replica.generation < generation:
            message = f"{instance_id} generation {generation} is not registered"
            raise NotFound("REPLICA_NOT_REGISTERED", message)
        if known.replica.generation > generation:
            raise _superseded(instance_id, generation, known.replica)
        return known

    def deregister(self, instance_id: str, generation: int) -> None:
        """Remove a replica. Changes state. Raises as `require`: another start cannot remove the registered one."""
        self.require(instance_id, generation)
        del self._entries[instance_id]

    def forget_silent(self, now_s: float) -> None:
        """Drop replicas that were silent for longer than the retention. Changes state."""
        kept = {n: entry for n, entry in self._entries.items() if now_s - entry.received_s <= RETENTION_S}
        self._entries = kept

    def forgive(self, seconds: float, now_s: float) -> None:
        """Extend leases by the seconds of a pause of the controller. Changes state."""
        for name, entry in self._entries.items():
            self._entries[name] = replace(entry, received_s=min(entry.received_s + seconds, now_s))

    def live(self, now_s: float) -> tuple[ReplicaView, ...]:
        """Return the replicas to plan with: live and not draining, ordered by instance id."""
        usable = (entry for entry in self._entries.values() if self._is_live(entry, now_s) and not _is_draining(entry))
        views = (
            ReplicaView(entry.replica, entry.report, entry.held, works=now_s - entry.worked_s < WORKED_S)
            for entry in usable
        )
        return tuple(sorted(views, key=lambda view: view.replica.instance_id))

    def holders(self, digest: str, now_s: float, without: str) -> list[str]:
        """Return the addresses of the live replicas that hold a component, but that of `without`. Of draining ones only
        if no other holds it: then its component moves before they end."""
        entries = [entry for name, entry in self._entries.items() if name != without and digest in entry.held]
        live = [entry for entry in entries if self._is_live(entry, now_s)]
        staying = [entry for entry in live if not _is_draining(entry)]
        return [entry.replica.address for entry in staying or live]

    def next_expiry_s(self, now_s: float) -> float | None:
        """Return the time of the next end of a lease without a report; None without live replicas."""
        ends = [entry.received_s + self.lease_s for entry in self._entries.values() if self._is_live(entry, now_s)]
        return min(ends, default=None)

    def statuses(self, now_s: float) -> tuple[ReplicaStatus, ...]:
        entries = sorted(self._entries.items())
        return tuple(_status(entry, self._is_live(entry, now_s), now_s) for _, entry in entries)

    def _is_live(self, entry: _RegisteredReplica, now_s: float) -> bool:
        return now_s - entry.received_s < self.lease_s

    def _take_address(self, replica: Replica, now_s: float) -> None:
        """Forget an earlier start with the same address. Changes state. Raises FailedPrecondition if a later start has
        it."""
        for entry in tuple(self._entries.values()):
            other = entry.replica
            if other.address != replica.address or other.instance_id == replica.instance_id:
                continue
            if self._is_live(entry, now_s) and other.generation >= replica.generation:
                message = (
                    f"{replica.instance_id} is rejected: {other.instance_id}, which started later, advertises"
                    f" {other.address} too; each needs an address of its own"
                )
                raise FailedPrecondition(Reason.REPLICA_ADDRESS_TAKEN, message)
            del self._entries[other.instance_id]

    def _make_room(self, now_s: float) -> None:
        if len(self._entries) < self._capacity:
            return
        oldest = min(self._entries.values(), key=lambda entry: entry.received_s)
        if self._is_live(oldest, now_s):
            message = f"the fleet holds {self._capacity} live replicas, which is its limit"
            raise ResourceExhausted("FLEET_FULL", message, retry_after_ms=int(self.lease_s * 1000))
        del self._entries[oldest.replica.instance_id]


def _planned_by(replica: Replica) -> Replica:
    """Return the part of a replica that changes the plan immediately. Workers often load LoRAs: these count in the next
    planning round."""
    if replica.kind is not ReplicaKind.UNET_WORKER:
        return replica
    return replace(replica, resident_models=replica.resident_models[:1])


def _is_draining(entry: _RegisteredReplica) -> bool:
    return entry.report is not None and entry.report.draining


def _held_after(before: frozenset[str], report: ReplicaReport) -> frozenset[str]:
    gone = {one.digest for one in report.component_changes if one.tier is Tier.STORE}
    new = {one.digest for one in report.component_changes if one.tier is not Tier.STORE}
    return (frozenset[str]() if report.all_components else before - gone) | new


def _outranks(known: Replica, replica: Replica) -> bool:
    """Return whether `known`, with the same instance id, is another process and did not start before `replica`."""
    if known.generation == replica.generation:
        return known.address != replica.address
    return known.generation > replica.generation


def _superseded(instance_id: str, generation: int, newer: Replica) -> FailedPrecondition:
    message = (
        f"{instance_id} generation {generation} was replaced by generation {newer.generation} at {newer.address}; where"
        " both are to run, each needs an instance id of its own"
    )
    return FailedPrecondition(Reason.REPLICA_SUPERSEDED, message)


def _status(entry: _RegisteredReplica, live: bool, now_s: float) -> ReplicaStatus:
    report = entry.report or ReplicaReport(entry.replica.instance_id, entry.replica.generation)
    counted = {name: getattr(report, name) for name in _REPORTED}
    return ReplicaStatus(entry.replica, max(0, round((now_s - entry.received_s) * 1000)), live, **counted)
