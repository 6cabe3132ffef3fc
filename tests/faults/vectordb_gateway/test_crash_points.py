"""A crash before or after any change to any store leaves something that one round of maintenance puts right."""

import asyncio
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pentimento.domain.clock import SteadyClock, SystemClock
from pentimento.domain.generation import CapturedEntries, CapturedLatent, ObjectReference
from pentimento.policies.cache_selection import SelectionRules
from pentimento.policies.followed_cache import CacheChoice
from pentimento.policies.reuse_rules import ReuseRules
from pentimento.stores.ledger.cache_ledger import CacheLedger, open_cache_ledger
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.vectors import VectorIndex
from services.vectordb_gateway.capacity import Capacity
from services.vectordb_gateway.encoder_guard import EncoderGuard
from services.vectordb_gateway.indexing import Indexing
from services.vectordb_gateway.integrity import check_integrity
from services.vectordb_gateway.maintenance import Maintenance
from services.vectordb_gateway.match_predictor.match_watch import MatchWatch
from services.vectordb_gateway.pinning import Pinning
from services.vectordb_gateway.planned_cache import PlannedCache
from services.vectordb_gateway.settings import (
    CapacitySettings,
    GrantSettings,
    MaintenanceSettings,
    MatchPredictorSettings,
)
from services.vectordb_gateway.writing import EntryWriting, ReservedRun, WriteBounds
from tests.gateways import attempt, embedding, scope

pytestmark = pytest.mark.faults

CHANGES = {
    "put", "delete", "sweep_uploads", "upsert", "prepare", "bind_encoder", "reserve", "commit", "release",
    "expire_grants", "mark_indexed", "doom", "evict", "forget_entries", "forget_objects", "pin", "unpin",
    "claim_deletion",
}  # fmt: skip


class Crash(BaseException):
    """The process ends here: no handler may catch it."""


class CrashPoint:
    """Wraps stores so that the `number`-th change to any of them crashes, half the time after it was made."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.crashed = False

    def around(self, store: Any) -> Any:
        return _Wrapped(store, self)

    def pass_by(self) -> None:
        if self.crashed:
            raise Crash
        self.left -= 1
        if self.left == 0:
            self.crashed = True
            raise Crash


class _Wrapped:
    def __init__(self, store: Any, point: CrashPoint) -> None:
        self._store = store
        self._point = point

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in CHANGES:
            return found

        def change(*arguments: Any, **options: Any) -> Any:
            self._point.pass_by()
            answer = found(*arguments, **options)
            if hasattr(answer, "result"):
                answer.result()
            self._point.pass_by()
            return answer

        return change


class Cache:
    """The gateway's working parts over given stores, without its threads and sockets."""

    def __init__(self, ledger: CacheLedger, index: VectorIndex, objects: ObjectStore) -> None:
        # What a caller was told is kept, by its request.
        self.pinned: dict[str, ObjectReference] = {}
        self.objects = objects
        self.pinning = Pinning(ledger, SystemClock())
        guard = EncoderGuard(ledger, index)
        guard.open()
        self.indexing = Indexing(ledger, index, guard)
        settings = CapacitySettings(max_entries=1, object_grace_s=0, min_free_bytes=0)
        capacity = Capacity(ledger, objects, settings, GrantSettings())
        rules = PlannedCache(CacheChoice(), ReuseRules(SelectionRules()))
        self.writing = EntryWriting(
            ledger, guard, self.indexing, capacity, rules, WriteBounds(900, 5), SteadyClock(SystemClock())
        )
        self.maintenance = Maintenance(
            ledger,
            objects,
            self.indexing,
            capacity,
            MaintenanceSettings(),
            MatchWatch(ledger, MatchPredictorSettings()),
        )

    async def live(self) -> None:
        """Two entries in, which is one too many, of the first two latents pinned; a grant given back; a round of
        maintenance; one pin ended, and another round."""
        for number in range(2):
            by = attempt()
            captured = await self.upload(by)
            await self.writing.commit(scope(), by, captured, embedding(*([0] * number), 1), None, 0)
            for step, latent in enumerate(captured.latents[: 2 * (1 - number)]):
                await self.pinning.pin("tenant", f"r{step}", latent.object, 3600.0)
                self.pinned[f"r{step}"] = latent.object
        await self.writing.release((await self.upload(attempt())).grant_id)
        self.maintenance.run_round()
        del self.pinned["r0"]
        await self.pinning.unpin("tenant", "r0")
        self.maintenance.run_round()

    async def upload(self, by: Any) -> CapturedEntries:
        grant = (await self.writing.reserve(scope(), by, ReservedRun())).grant
        assert grant is not None
        latents = [
            CapturedLatent(slot.resume_step, 1.0, self.objects.put(slot.key, b"latent", durable=False), True)
            for slot in grant.latents
        ]
        return CapturedEntries(grant.grant_id, tuple(latents))


@pytest.fixture
def open_stores(tmp_path: Path) -> Iterator[Callable[[int], tuple[CacheLedger, VectorIndex, ObjectStore]]]:
    from qdrant_client import QdrantClient  # takes seconds, also of those that only collect this

    from pentimento.stores.vectors.qdrant import QdrantVectorIndex

    opened: list[CacheLedger] = []
    indexes: dict[int, VectorIndex] = {}

    def open_(number: int) -> tuple[CacheLedger, VectorIndex, ObjectStore]:
        if number not in indexes:
            indexes[number] = QdrantVectorIndex(QdrantClient(":memory:"), "test")
        ledger = open_cache_ledger(f"sqlite:///{tmp_path}/{number}.sqlite")
        opened.append(ledger)
        return ledger, indexes[number], open_objects(f"file://{tmp_path}/{number}")

    yield open_
    for ledger in opened:
        ledger.close()


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect")
def test_every_crash_point_is_recovered_from(
    open_stores: Callable[[int], tuple[CacheLedger, VectorIndex, ObjectStore]],
) -> None:
    for number in count(1):
        point = CrashPoint(number)
        stores = open_stores(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            crashed, promised = live_until_crash(point, stores)
            problems, entry_count = recover(open_stores(number))

        assert problems == [], f"crash at change {number}"
        for reference in promised:
            assert stores[2].get(reference) == b"latent", f"crash at change {number}"
        assert entry_count <= 1
        if not crashed:
            assert number > 30, "the life of an entry has more changes than that"
            return


def live_until_crash(
    point: CrashPoint, stores: tuple[CacheLedger, VectorIndex, ObjectStore]
) -> tuple[bool, list[ObjectReference]]:
    """Whether it crashed, and what was promised to be kept by then."""
    cache: Cache | None = None
    try:
        cache = Cache(*(point.around(store) for store in stores))
        asyncio.run(cache.live())
    except Crash:
        return True, list(cache.pinned.values()) if cache is not None else []
    return False, list(cache.pinned.values())


def recover(stores: tuple[CacheLedger, VectorIndex, ObjectStore]) -> tuple[list[str], int]:
    """A new process on the same stores: its first round, then what is still wrong."""
    ledger, index, objects = stores
    Cache(ledger, index, objects).maintenance.run_round()
    Cache(ledger, index, objects).maintenance.run_round()
    return check_integrity(ledger, index, objects), ledger.totals().entry_count
