"""The parts of a gateway that answer calls, and its counts."""

import asyncio
from dataclasses import dataclass

from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.ledger.cache_records import CacheTotals
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
    """Counts are since the start of this process: lookups, those that found a start, starts that workers took, and
    those that they could not use."""

    totals: CacheTotals
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
            totals=totals,
            lookup_count=self.lookup.lookup_count,
            hit_count=self.lookup.hit_count,
            read_only=bool(self.capacity.read_only_reason(totals)),
            index_backend=self.index_backend,
            object_backend=self.object_backend,
            taken_count=self.uses.taken_count,
            passed_over_count=self.uses.passed_over_count,
        )
