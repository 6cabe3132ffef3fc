"""Crash before or after every change to a store: one round of maintenance must repair the remains."""

import asyncio
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pentimento.domain.clock import SteadyClock, SystemClock
from pentimento.domain.generation import CapturedEntries, CapturedLatent, ObjectReference
from pentimento.domain.online_quality import ComparedHit, WatchedThreshold
from pentimento.policies.cache_selection import SelectionRules, Threshold
from pentimento.policies.followed_cache import CacheChoice
from pentimento.policies.reuse_rules import ReuseRules
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from pentimento.stores.ledger.cache.records import CacheTotals, EncoderBinding
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.objects.suspects import BAD_READINGS, Suspects
from pentimento.stores.vectors import Space, VectorIndex
from services.vectordb_gateway.entries import writer
from services.vectordb_gateway.entries.capacity import Capacity
from services.vectordb_gateway.entries.rules import PlannedCache
from services.vectordb_gateway.entries.writer import EntryWriting, Pinning, ReservedRun
from services.vectordb_gateway.integrity import check_integrity
from services.vectordb_gateway.lookup.encoder import EncoderGuard
from services.vectordb_gateway.match_predictor.match_watch import MatchWatch
from services.vectordb_gateway.settings import CapacitySettings, EvictionChoice, GatewayBounds
from services.vectordb_gateway.upkeep.healing import Healing
from services.vectordb_gateway.upkeep.indexing import Indexing
from services.vectordb_gateway.upkeep.maintenance import Maintenance
from services.vectordb_gateway.upkeep.uses import UseNotes
from tests.support.gateways import DIMENSION_COUNT, ENCODER, attempt, embedding, scope

pytestmark = pytest.mark.faults


def _answers_later(name: str, method: Any) -> bool:
    return name[0] != "_" and "Future" in str(getattr(method, "__annotations__", {}).get("return", ""))


# Derive the ledger's changes from methods that return a future, so that a new method is included.
LEDGER_CHANGES = {name for name, method in vars(CacheLedger).items() if _answers_later(name, method)}
CHANGES = {"put", "delete", "sweep_uploads", "set_aside", "upsert", "prepare"} | LEDGER_CHANGES
OBJECT_BYTES = len(b"latent")
LIVES = {
    "entries go": CapacitySettings(max_entries=1),
    # One of the two entries keeps only its image; the other keeps its image and the latent that served a lookup.
    "items go": CapacitySettings(max_size_bytes=3 * OBJECT_BYTES, eviction=EvictionChoice.LCBFU),
}
BOUNDS = GatewayBounds(object_grace_s=0, min_free_bytes=0)
WATCHED = WatchedThreshold(ENCODER, "sha256:model", "sha256:model", False, 500_000)
SEEN = ComparedHit("r-1", "sha256:model", "sha256:model", ENCODER, False, 25, 50, 0.9, 0.9, 1.0)


class Crash(BaseException):
    """Represent the end of the process: no handler may catch it."""


class CrashPoint:
    """Wrap stores so that the `number`-th change crashes, before or after it is made in alternation."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.crashed = False
        self.changes: set[str] = set()

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
            self._point.changes.add(name)
            self._point.pass_by()
            answer = found(*arguments, **options)
            if hasattr(answer, "result"):
                answer.result()
            self._point.pass_by()
            return answer

        return change


class Cache:
    """Hold the gateway's working parts over given stores, without its threads and sockets."""

    def __init__(
        self, ledger: CacheLedger, index: VectorIndex, objects: ObjectStore, settings: CapacitySettings
    ) -> None:
        # Hold acknowledged pins by request, and objects that readers will miss, by entry.
        self.pinned: dict[str, ObjectReference] = {}
        self.missing: list[tuple[str, str]] = []
        self.ledger, self.index, self.objects = ledger, index, objects
        self.pinning = Pinning(ledger, SystemClock())
        guard = EncoderGuard(ledger, index)
        guard.open()
        self.indexing = Indexing(ledger, index, guard)
        capacity = Capacity(ledger, objects, settings, BOUNDS)
        rules = PlannedCache(CacheChoice(), ReuseRules(SelectionRules(images=(Threshold(0.3, 0.4),))))
        self.uses = UseNotes(ledger)
        self.writing = EntryWriting(
            ledger, guard, self.indexing, capacity, rules, BOUNDS.grant_ttl_s, SteadyClock(SystemClock())
        )
        self.maintenance = Maintenance(
            ledger,
            objects,
            self.indexing,
            capacity,
            BOUNDS,
            MatchWatch(ledger),
            self.uses,
        )

    async def live(self) -> None:
        """Run every kind of change: two entries exceed the limit; the first two latents are pinned, and one serves a
        lookup. A grant is returned, and maintenance runs. A pin ends, and maintenance runs again. A hit is generated
        again. Then the pinned bytes are lost, the index's points, and bytes of an entry. Another image encoder replaces
        the first. At last the tenant is forgotten."""
        entry_ids = [await self.store(number) for number in range(2)]
        await self.writing.release((await self.upload(attempt())).grant_id)
        self.maintenance.run_round()
        del self.pinned["r0"]
        await self.pinning.unpin("tenant", "r0")
        self.maintenance.run_round()
        self.ledger.note_quality(WATCHED, SEEN, lambda _, before: before, 10)
        lost = self.pinned.pop("r1")
        self.missing.append((entry_ids[0], lost.key))
        self.objects.delete(lost.key)
        await self.report_missing(self.missing)
        self.index.delete(entry_ids)
        self.maintenance.request_reconciliation()
        self.maintenance.run_round()
        entry = self.ledger.live_entry(entry_ids[1])
        assert entry is not None and entry.image is not None
        self.missing.append((entry.entry_id, entry.image.key))
        self.objects.delete(entry.image.key)
        await self.report_missing(self.missing)
        self.maintenance.run_round()
        self.ledger.replace_encoder(EncoderBinding("another", DIMENSION_COUNT, Space.IMAGE), 900.0)
        self.maintenance.run_round()
        await self.pinning.forget_tenant("tenant")
        self.maintenance.run_round()

    async def store(self, number: int) -> str:
        """Return an entry's id; two latents of the first entry are pinned, and the last one served a lookup."""
        by, text = attempt(), embedding(*([0] * number), 1)
        captured = await self.upload(by)
        entry_id = await self.writing.commit(scope(), by, captured, text, text, 0)
        if number == 0:
            for request_id, latent in zip(("r0", "r1"), captured.latents, strict=False):
                await self.pinning.pin("tenant", request_id, latent.object, 3600.0)
                self.pinned[request_id] = latent.object
            self.uses.note(captured.latents[-1].object.key, from_image=False, taken=True)
        return entry_id

    async def report_missing(self, missing: list[tuple[str, str]]) -> None:
        """Report missing objects, as readers do."""
        healing = Healing(self.ledger, self.objects, Suspects(apart_s=0.0))
        try:
            for entry_id, key in missing * BAD_READINGS:
                await healing.report(entry_id, key, "missing")
        finally:
            healing.close()

    async def upload(self, by: Any) -> CapturedEntries:
        grant = (await self.writing.reserve(scope(), by, ReservedRun(tenant_cache_bytes=10**9))).grant
        assert grant is not None
        latents = [
            CapturedLatent(slot.resume_step, 1.0, self.objects.put(slot.key, b"latent", durable=False), True)
            for slot in grant.latents
        ]
        image = self.objects.put(grant.image_key, b"image!", durable=False)
        return CapturedEntries(grant.grant_id, tuple(latents), image)


@pytest.fixture
def open_stores(tmp_path: Path) -> Iterator[Callable[[int], tuple[CacheLedger, VectorIndex, ObjectStore]]]:
    from qdrant_client import AsyncQdrantClient, QdrantClient  # takes seconds, also for runs that only collect this

    from pentimento.stores.vectors.qdrant import QdrantVectorIndex

    opened: list[CacheLedger] = []
    indexes: dict[int, VectorIndex] = {}

    def open_(number: int) -> tuple[CacheLedger, VectorIndex, ObjectStore]:
        if number not in indexes:
            indexes[number] = QdrantVectorIndex(QdrantClient(":memory:"), AsyncQdrantClient, "test")
        ledger = open_cache_ledger(f"sqlite:///{tmp_path}/{number}.sqlite")
        opened.append(ledger)
        return ledger, indexes[number], open_objects(f"file://{tmp_path}/{number}")

    yield open_
    for ledger in opened:
        ledger.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.filterwarnings("ignore:Payload indexes have no effect")
def test_every_crash_point_is_recovered_from(
    open_stores: Callable[[int], tuple[CacheLedger, VectorIndex, ObjectStore]],
    life: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A machine that is busy for a second must not look like a hanging ledger.
    monkeypatch.setattr(writer, "_RESERVES_WITHIN_S", 60.0)
    settings = LIVES[life]
    for number in count(1):
        point = CrashPoint(number)
        stores = open_stores(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            crashed, promised, missing = live_until_crash(point, stores, settings)
            problems, totals = recover(open_stores(number), settings, missing)

        assert problems == [], f"crash at change {number}"
        for reference in promised:
            assert stores[2].get(reference) == b"latent", f"crash at change {number}"
        assert totals.entry_count <= settings.max_entries and totals.size_bytes <= settings.max_size_bytes
        if not crashed:
            assert number > 30, "the life of an entry has more changes than that"
            of_items = {"evict_items"} if settings.eviction is None else set()
            assert point.changes >= LEDGER_CHANGES - of_items, "a change that nothing crashes at"
            return


def live_until_crash(
    point: CrashPoint, stores: tuple[CacheLedger, VectorIndex, ObjectStore], settings: CapacitySettings
) -> tuple[bool, list[ObjectReference], list[tuple[str, str]]]:
    """Return whether the process crashed, the pinned objects, and the entries that readers will miss."""
    cache: Cache | None = None
    try:
        ledger, index, objects = (point.around(store) for store in stores)
        cache = Cache(ledger, index, objects, settings)
        asyncio.run(cache.live())
    except Crash:
        return True, list(cache.pinned.values()) if cache is not None else [], cache.missing if cache else []
    return False, list(cache.pinned.values()), cache.missing


def recover(
    stores: tuple[CacheLedger, VectorIndex, ObjectStore], settings: CapacitySettings, missing: list[tuple[str, str]]
) -> tuple[list[str], CacheTotals]:
    """Run a new process's first round on the same stores; return the remaining faults and the totals."""
    ledger, index, objects = stores
    first = Cache(ledger, index, objects, settings)
    first.maintenance.run_round()
    asyncio.run(first.report_missing(missing))
    Cache(ledger, index, objects, settings).maintenance.run_round()
    unindexed = [f"{vectors.entry_id} is not indexed as it is" for vectors in ledger.unindexed(10)]
    return [*check_integrity(ledger, index, objects), *unindexed], ledger.totals()
