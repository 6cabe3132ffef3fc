"""The parts of a gateway that answer calls, and its counts."""

import asyncio
from dataclasses import dataclass

from pentimento.stores.ledger.cache_ledger import CacheLedger
from services.vectordb_gateway.capacity import Capacity
from services.vectordb_gateway.healing import Healing
from services.vectordb_gateway.lookup import Lookup
from services.vectordb_gateway.neighbours import NeighbourSearch
from services.vectordb_gateway.pinning import Pinning
from services.vectordb_gateway.quality_watch import QualityWatch
from services.vectordb_gateway.use_notes import UseNotes
from services.vectordb_gateway.writing import EntryWriting


@dataclass(frozen=True)
class GatewayStatistics:
    """Contents of the cache. Counts of lookups and starts are since the start of this process: `hit_count` found a
    start, workers took `taken_count` starts and could not use `passed_over_count`."""

    entry_count: int
    object_count: int
    size_bytes: int
    pending_grant_count: int
    lookup_count: int
    hit_count: int
    read_only: bool
    index_backend: str
    object_backend: str
    taken_count: int
    passed_over_count: int


@dataclass(frozen=True)
class Gateway:
    lookup: Lookup
    neighbours: NeighbourSearch
    writing: EntryWriting
    healing: Healing
    pinning: Pinning
    quality: QualityWatch
    uses: UseNotes
    ledger: CacheLedger
    capacity: Capacity
    index_backend: str
    object_backend: str

    async def statistics(self) -> GatewayStatistics:
        totals = await asyncio.to_thread(self.ledger.totals)
        return GatewayStatistics(
            entry_count=totals.entry_count,
            object_count=totals.object_count,
            size_bytes=totals.size_bytes,
            pending_grant_count=totals.open_grant_count,
            lookup_count=self.lookup.lookup_count,
            hit_count=self.lookup.hit_count,
            read_only=bool(self.capacity.read_only_reason(totals)),
            index_backend=self.index_backend,
            object_backend=self.object_backend,
            taken_count=self.uses.taken_count,
            passed_over_count=self.uses.passed_over_count,
        )
