"""Put a gateway process together."""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from pentimento.api.vectordb.v1.vectordb_gateway_service_pb2_grpc import add_VectordbGatewayServiceServicer_to_server
from pentimento.domain.clock import Clock, SteadyClock, SystemClock, boot_s
from pentimento.domain.embedding import Space
from pentimento.domain.errors import FailedPrecondition, PentimentoError
from pentimento.domain.fleet import ReplicaKind
from pentimento.rpc import RpcServer
from pentimento.rpc.watched_file import kept_grant_keys
from pentimento.service.fleet_member import FleetMember, PlanFollower
from pentimento.service.process import ServiceProcess
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.objects.suspects import Suspects
from pentimento.stores.vectors import IndexBuilding, VectorIndex, open_vectors
from services.vectordb_gateway.entries.capacity import Capacity
from services.vectordb_gateway.entries.rules import PlannedCache, QualityWatch
from services.vectordb_gateway.entries.writer import EntryWriting, Pinning
from services.vectordb_gateway.lookup.encoder import EncoderGuard
from services.vectordb_gateway.lookup.lookup import Lookup
from services.vectordb_gateway.lookup.search import LookupBounds
from services.vectordb_gateway.match_predictor.match_watch import MatchWatch
from services.vectordb_gateway.servicer import FULL_NAME, Gateway, GatewayServicer
from services.vectordb_gateway.settings import SEARCH_TIMEOUT_S, EvictionChoice, GatewayBounds, GatewaySettings
from services.vectordb_gateway.upkeep.healing import Healing
from services.vectordb_gateway.upkeep.indexing import Indexing
from services.vectordb_gateway.upkeep.maintenance import Maintenance
from services.vectordb_gateway.upkeep.store_calls import StallWatch, WatchedStore
from services.vectordb_gateway.upkeep.uses import UseNotes

logger = logging.getLogger(__name__)

# For this time a removal by another gateway over the same ledger may stay unnoticed; the objects stay longer.
_ROW_AGE_S = 10.0
_MAINTENANCE_HANGS_S = 120.0


@dataclass(frozen=True)
class Stores:
    """The stores of a gateway. Opening them blocks; the ledger must be reachable, the others may come later."""

    ledger: CacheLedger
    index: VectorIndex
    objects: ObjectStore

    @classmethod
    def open(cls, settings: GatewaySettings, building: IndexBuilding, clock: Clock) -> "Stores":
        """Raises InvalidArgument for a wrong url, StoreUnavailable, SchemaMismatch."""
        objects, index = open_objects(settings.objects_url), open_vectors(settings.index_url, building)
        return cls(open_cache_ledger(settings.ledger_url, clock), index, objects)

    def close(self) -> None:
        self.index.close()
        self.ledger.close()


@dataclass(kw_only=True)
class GatewayProcess(ServiceProcess):
    stores: Stores
    gateway: Gateway
    guard: EncoderGuard
    indexing: Indexing
    maintenance: Maintenance
    stalls: StallWatch
    planned: PlannedCache
    follower: PlanFollower | None = None

    async def prepare(self) -> None:
        """Open the index and repair the remains of a crash. Until the index is open, lookups miss."""
        try:
            await asyncio.to_thread(self.guard.open)
        except StoreUnavailable as error:
            logger.warning("lookups miss until the index is ready: %s", error.message)
        self._refuse_profiles()
        await asyncio.to_thread(self.gateway.capacity.follow_rule)
        await asyncio.to_thread(self.maintenance.run_round)
        if self.follower is not None:
            self.run_beside(partial(self.follower.run, self.planned.take), "plan")
        self.run_beside(self.maintenance.run, "maintenance")
        self.run_beside(self.stalls.run, "stalls")

    def _refuse_profiles(self) -> None:
        """Log the profile that was made for another encoder than the cache's: it is not used."""
        if (encoder_digest := self.guard.digest()) is not None:
            try:
                self.planned.rules.profiles.check_encoder(encoder_digest, self.guard.digest(Space.IMAGE))
            except FailedPrecondition as error:
                logger.warning("a selector profile is not used: %s", error.message)

    async def close(self) -> None:
        self.gateway.lookup.close()
        self.gateway.writing.close()
        self.gateway.healing.close()
        try:
            await asyncio.to_thread(self.gateway.uses.write)
        except PentimentoError as error:
            logger.warning("the last uses of cached items are not recorded: %s", error.message)
        self.indexing.close()
        self.stores.close()


def wire(
    settings: GatewaySettings, machine_clock: Clock | None = None, bounds: GatewayBounds | None = None
) -> GatewayProcess:
    """Call it inside the event loop that the process runs on."""
    bounds = bounds or settings.bounds()
    clock = SteadyClock(machine_clock) if machine_clock is not None else SteadyClock(SystemClock(), boot_s)
    server = RpcServer(settings.rpc, "vectordb_gateway")
    stores = Stores.open(settings, bounds.building, clock)
    ledger, index, objects = stores.ledger, stores.index, stores.objects
    guard = EncoderGuard(ledger, index)
    watch = MatchWatch(ledger, settings.match_predictor)
    indexing = Indexing(ledger, index, guard, watch.follow)
    planned = PlannedCache(settings.choice(), settings.selection.reuse())
    capacity = Capacity(ledger, objects, settings.capacity, bounds, lambda: EvictionChoice(planned.in_force.eviction))
    quality = QualityWatch(ledger, guard, planned)
    suspects = Suspects(bounds.quarantine_s)
    keys = kept_grant_keys(settings.grant_key_file) if settings.grant_key_file is not None else None
    searched = LookupBounds(
        SEARCH_TIMEOUT_S * settings.part_wait_factor, settings.selection.scratch_share, _row_age_s(bounds)
    )
    gateway = Gateway(
        lookup=Lookup(guard, index, ledger, quality, searched, watch, lambda: planned.in_force, suspects),
        writing=EntryWriting(ledger, guard, indexing, capacity, planned, bounds.grant_ttl_s, clock, keys),
        healing=Healing(ledger, objects, suspects),
        pinning=Pinning(ledger, clock),
        quality=quality,
        uses=UseNotes(ledger),
        ledger=ledger,
        capacity=capacity,
        index_backend=index.backend,
        object_backend=objects.backend,
    )
    server.add(add_VectordbGatewayServiceServicer_to_server, GatewayServicer(gateway), FULL_NAME)
    maintenance = Maintenance(
        ledger, objects, indexing, capacity, bounds, watch, gateway.uses, quality, gateway.healing
    )
    member = FleetMember(server, ReplicaKind.VECTORDB_GATEWAY, settings)
    controller = member.controller if settings.follow_plan else None
    return GatewayProcess(
        server=server,
        registration=member.registration(),
        stores=stores,
        gateway=gateway,
        guard=guard,
        indexing=indexing,
        maintenance=maintenance,
        stalls=StallWatch(watched_stores(gateway.lookup, ledger, maintenance), partial(tell_health, server)),
        planned=planned,
        follower=PlanFollower(controller, server.instance_id) if controller is not None else None,
    )


def _row_age_s(bounds: GatewayBounds) -> float:
    """Return how long rows stay in memory: a row ends well before the objects of a deleted entry go."""
    return min(_ROW_AGE_S, bounds.object_grace_s / 4)


def tell_health(server: RpcServer, serving: bool) -> None:
    """Set the health of the process and its services."""
    if serving:
        server.set_serving()
    else:
        server.set_not_serving()


def watched_stores(lookup: Lookup, ledger: CacheLedger, maintenance: Maintenance) -> dict[str, WatchedStore]:
    """Return the stores that may hang. A task of maintenance may go through a whole object store."""
    return {
        "reads": WatchedStore(lambda: lookup.stuck_s),
        "writes": WatchedStore(lambda: ledger.writes_stuck_s),
        "maintenance": WatchedStore(lambda: maintenance.stuck_s, hangs_s=_MAINTENANCE_HANGS_S, serves=False),
    }
