"""Play calls of ControlNets on several replicas of the service, with and without the places of a plan.

Streams go to replicas by the worker's rule (`policies.replica_choice`), and stay open while the next requests begin. A
replica holds ControlNets of one size by the service's rule, and evicts planned ones after all others.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.components import GB, Loadable, StoredBytes, Tier
from pentimento.domain.demand import AdapterDemand
from pentimento.domain.fleet import Replica, ReplicaKind
from pentimento.policies.plan.component_placement import ComponentUses, place_components
from pentimento.policies.plan.inputs import ModelDemand, ReplicaView
from pentimento.policies.replica_choice import Hearing, ReplicaCandidate, ReplicaLoad, best_replica
from pentimento.policies.residency import ResidentSet

REPLICAS = 4
# Requests that begin while a request's streams are open, and between two plans.
OPEN_REQUESTS, PLAN_REQUESTS = 8, 50
CREDITS = 32

Requests = Sequence[Sequence[str]]


@dataclass
class PlayedReplica:
    """Hold a replica's ControlNets, its planned ones, and its open streams."""

    held: ResidentSet
    planned: frozenset[str] = frozenset()
    open_count: int = 0

    def use(self, name: str) -> bool:
        """Count a use, load the ControlNet if it is missing, and return whether it was there."""
        called = Loadable(name, memory_bytes=1, load_s=1.0)
        was_there = name in self.held.names
        self.held.use(called)
        self._have(called)
        return was_there

    def place(self, names: Sequence[str]) -> int:
        """Hold the planned ControlNets, and return the number of loads."""
        self.planned = frozenset(names)
        missing = [name for name in names if name not in self.held.names]
        for name in missing:
            self._have(Loadable(name, memory_bytes=1, load_s=1.0))
        return len(missing)

    def _have(self, called: Loadable) -> None:
        if called.name in self.held.names:
            return
        leaving = self.held.leaving_for(called, self.planned)
        for name in self.held.leaving_for(called, ()) or () if leaving is None else leaving:
            self.held.remove(name)
        self.held.add(called)


@dataclass(frozen=True)
class PlayedCalls:
    """Count calls, calls that waited for a load, and loads ahead of calls by plans."""

    calls: int
    waited: int
    ahead: int


def played_on_replicas(requests: Requests, places: int, is_planned: bool) -> PlayedCalls:
    """Play all requests on replicas with memory for `places` ControlNets each."""
    replicas = {f"c{number}": PlayedReplica(ResidentSet(places)) for number in range(REPLICAS)}
    open_streams: deque[list[str]] = deque()
    uses, calls, waited, ahead = ComponentUses(), 0, 0, 0
    for number, names in enumerate(requests):
        if len(open_streams) == OPEN_REQUESTS:
            for address in open_streams.popleft():
                replicas[address].open_count -= 1
        chosen: list[str] = []
        for name in names:
            address = best_replica([_candidate(one, of, chosen) for one, of in replicas.items()], name)
            waited += not replicas[address].use(name)
            replicas[address].open_count += 1
            chosen.append(address)
        calls += len(names)
        open_streams.append(chosen)
        if is_planned and (number + 1) % PLAN_REQUESTS == 0:
            recent = [name for one in requests[number + 1 - PLAN_REQUESTS : number + 1] for name in one]
            uses = uses.seen([ModelDemand("m", 1.0, adapters=_demand(recent))])
            placed = place_components(uses, [_view(name, one, requests, places) for name, one in replicas.items()], ())
            uses = placed.uses
            for address, one in replicas.items():
                ahead += one.place([p.component for p in placed.components if address in p.instance_ids])
    return PlayedCalls(calls, waited, ahead)


def _candidate(address: str, replica: PlayedReplica, chosen: Sequence[str]) -> ReplicaCandidate:
    load = ReplicaLoad(CREDITS, replica.open_count, resident=frozenset(replica.held.names))
    return ReplicaCandidate(address, Hearing.NOW, load, same_picture_count=chosen.count(address))


def _demand(calls: Sequence[str]) -> tuple[AdapterDemand, ...]:
    return tuple(AdapterDemand(AdapterKind.CONTROLNET, name, calls.count(name)) for name in sorted(set(calls)))


def _view(name: str, replica: PlayedReplica, requests: Requests, places: int) -> ReplicaView:
    names = sorted({name for one in requests for name in one})
    described = Replica(
        name,
        ReplicaKind.CONTROLNET,
        f"played:{name}",
        1,
        resident_models=replica.held.names,
        adapters=tuple(Adapter(one, AdapterKind.CONTROLNET, "", "") for one in names),
        stored=tuple(StoredBytes(one, Tier.DISK, GB) for one in names),
        adapter_memory_bytes=places * GB,
    )
    return ReplicaView(described)
