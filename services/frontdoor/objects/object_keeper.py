"""Store images and inputs whether or not their store is available: objects that it does not take in time wait in the
journal."""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from time import monotonic
from typing import TypeVar

from pentimento.domain.clock import Backoff
from pentimento.domain.errors import FailedPrecondition, PentimentoError, ResourceExhausted
from pentimento.domain.generation import ObjectReference
from pentimento.domain.jobs import ResultUrlServer
from pentimento.rpc.process import started_pool
from pentimento.stores.errors import StoreFull, StoreUnavailable
from pentimento.stores.ledger.journal.objects import JournalObjects
from pentimento.stores.ledger.journal.records import SpooledObject
from pentimento.stores.objects import ObjectStore, ownership
from pentimento.stores.objects.store import StoreUsage, refer_to
from services.frontdoor.metrics import SPOOLED_BYTES, SPOOLED_OBJECTS

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A hung store blocks these threads and no others.
_THREAD_COUNT = 8
# No client waits for an object that is moved, but one waits for an object that is read.
_MOVE_TIMEOUT_S = 60.0
_READ_TIMEOUT_S = 10.0
# Keys per listing of a store; the journal looks them up together.
LISTED_AT_ONCE = 500
# If every thread has been in one call for this long, new calls fail immediately.
_STUCK_S = 10.0
_RETRIES = Backoff(first_s=0.2, max_s=15.0)
SPOOL_RETRY_MS = 5000


class ObjectKeeper:
    """Combine one object store with its spool in the journal. Errors name neither keys nor paths."""

    def __init__(
        self, open_store: Callable[[], ObjectStore], journal: JournalObjects, spool_bytes: int, put_timeout_s: float
    ) -> None:
        """Open the store now, and at each use until `open_store` succeeds. Raises its errors about settings, but none
        if the store is away. At most `spool_bytes` wait in the journal, at most half for one tenant. A new object that
        the store does not take in `put_timeout_s` waits there."""
        self._open_store = open_store
        self._store: ObjectStore | None = None
        self._journal_id = ""
        with suppress(StoreUnavailable):
            self._store = open_store()
        self._journal = journal
        self._spool_bytes = spool_bytes
        self._put_timeout_s = put_timeout_s
        self._threads = started_pool(_THREAD_COUNT, "objects")
        # When the call of each busy thread began.
        self._numbers = itertools.count()
        self._began: dict[int, float] = {}
        self._spooled: dict[str, SpooledObject] = {}
        # All waiting bytes, in total and by tenant.
        self._waiting_bytes = 0
        self._tenant_waiting_bytes: Counter[str] = Counter()
        self._largest_bytes = 0
        # From the first failure until a waiting object was moved in time, new objects skip the store.
        self._away = asyncio.Event()

    async def recover(self) -> None:
        """Load the objects that wait in the journal, to be moved from now on."""
        for waiting in await asyncio.wrap_future(self._journal.spooled()):
            self._note(waiting)
            self._away.set()

    async def claim(self, journal_id: str, *, adopts: bool = False) -> None:
        """Mark the store's objects as that journal's, if no other journal owns them or it `adopts` them. If the store
        is away, `check_owned` does it later."""
        self._journal_id = journal_id
        try:
            if adopts:
                await self._on_store(lambda store: ownership.adopt(store, journal_id), self._put_timeout_s)
            else:
                await self.check_owned()
        except (FailedPrecondition, StoreFull, StoreUnavailable) as error:
            logger.error("the object store may hold another journal's objects", extra={"why": error.message})

    async def check_owned(self) -> None:
        """Claim the store for this journal. Raises FailedPrecondition if another journal has objects there too: an
        object without a row here may belong to it. Raises StoreUnavailable, StoreFull."""
        await self._on_store(lambda store: ownership.claim(store, self._journal_id), self._put_timeout_s)

    async def put(self, tenant: str, key: str, data: bytes) -> ObjectReference:
        """Make an object durable, in the store or else in the journal. Raises ResourceExhausted if neither has room,
        StoreUnavailable if neither answers."""
        self._largest_bytes = max(self._largest_bytes, len(data))
        if not self._away.is_set():
            try:
                return await self._on_store(lambda store: store.put(key, data), self._put_timeout_s)
            except (StoreFull, StoreUnavailable) as error:
                logger.error(
                    "the object store does not accept objects; they wait in the journal", extra={"why": error.message}
                )
                self._away.set()
        reference = refer_to(key, data)
        await self._spool(SpooledObject(tenant, reference), data)
        return reference

    async def offer(self, key: str, data: bytes) -> None:
        """Store an object that may be lost; it never waits in the journal. Raises StoreFull, StoreUnavailable."""
        if self._away.is_set():
            raise StoreUnavailable("object store", "it takes no objects")
        await self._on_store(lambda store: store.put(key, data, durable=False), self._put_timeout_s)

    async def get(self, reference: ObjectReference) -> bytes:
        """Return the bytes of an object. Raises ObjectMissing, ObjectCorrupt, StoreUnavailable."""
        if reference.key in self._spooled:
            data = await asyncio.wrap_future(self._journal.read_spooled(reference.key))
            if data is not None:
                return data
        return await self._on_store(lambda store: store.get(reference), _READ_TIMEOUT_S)

    @property
    def address_server(self) -> ResultUrlServer | None:
        """Return the server of the store's addresses; None until the store was first available."""
        return None if self._store is None else self._store.address_server

    async def presign(self, reference: ObjectReference, media_type: str, expires_at: int) -> str:
        """Return an address of an object, as the store does. Raises StoreUnavailable while the object waits in the
        journal."""
        if reference.key in self._spooled:
            raise StoreUnavailable("object store", "the object waits for it")
        return await self._on_store(lambda store: store.presign(reference, media_type, expires_at), _READ_TIMEOUT_S)

    async def set_aside(self, reference: ObjectReference) -> bool:
        return await self._on_store(lambda store: store.set_aside(reference), _READ_TIMEOUT_S)

    async def delete(self, key: str) -> None:
        """Delete the object from journal and store; if the store is away, the sweep deletes it later."""
        try:
            await self.erase(key)
        except StoreUnavailable as error:
            logger.info("an object was not deleted; the sweep will delete it", extra={"reason": error.reason})

    async def erase(self, key: str) -> None:
        """Delete the object from journal and store. Raises StoreUnavailable."""
        if self._forget(key):
            await asyncio.wrap_future(self._journal.unspool(key))
        await self._on_store(lambda store: store.delete(key), _READ_TIMEOUT_S)

    async def usage(self, prefix: str) -> StoreUsage:
        """Return the count and size of the store's objects with the prefix. Raises StoreUnavailable."""
        return await self._on_store(lambda store: store.usage(prefix), _MOVE_TIMEOUT_S)

    def has_waiting(self, tenant: str) -> bool:
        return self._tenant_waiting_bytes[tenant] > 0

    async def is_named(self, key: str) -> bool:
        """Return whether the journal names the object, so it must stay."""
        return key in await asyncio.wrap_future(self._journal.named([key]))

    async def keys(self, prefix: str) -> AsyncIterator[list[str]]:
        """Yield all of the store's keys with the prefix, in lists; keys of objects that wait in the journal are absent.
        Raises StoreUnavailable if a list takes too long; the time for all lists has no limit."""
        listed = await self._on_store(lambda store: iter(store.keys(prefix)), _MOVE_TIMEOUT_S)
        while some := await self._on_store(lambda _: list(itertools.islice(listed, LISTED_AT_ONCE)), _MOVE_TIMEOUT_S):
            yield some

    async def free_bytes(self) -> int | None:
        """Return the bytes free in the store; None if unknown."""
        try:
            return await self._on_store(lambda store: store.free_bytes(), self._put_timeout_s)
        except StoreUnavailable:
            return None

    def check_room(self, tenant: str, unfinished_count: int, tenant_unfinished_count: int) -> None:
        """Raise ResourceExhausted if that many images, each of the largest size so far, would exceed the spool while
        the store is away."""
        if self._away.is_set():
            self._check(self._waiting_bytes, unfinished_count * self._largest_bytes, self._spool_bytes)
            ahead, theirs = tenant_unfinished_count * self._largest_bytes, self._tenant_waiting_bytes[tenant]
            self._check(theirs, ahead, self._spool_bytes // 2, " of this tenant")

    async def move_forever(self) -> None:
        """Move waiting objects to the store whenever it is available again."""
        delays_s = _RETRIES.delays_s()
        while True:
            await self._away.wait()
            try:
                await self._move_all()
                delays_s = _RETRIES.delays_s()
                self._away.clear()
                logger.warning("the object store is back")
                continue
            except PentimentoError as error:
                self._away.set()
                logger.info("the object store is down", extra={"reason": error.reason})
            await asyncio.sleep(next(delays_s))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _move_all(self) -> None:
        while self._spooled:
            key, waiting = next(iter(self._spooled.items()))
            data = await asyncio.wrap_future(self._journal.read_spooled(key))
            if data is not None:
                await self._move(waiting.object, data)
            self._forget(key)
            self._publish()

    async def _move(self, reference: ObjectReference, data: bytes) -> None:
        began_at = monotonic()
        await self._on_store(lambda store: store.put(reference.key, data), _MOVE_TIMEOUT_S)
        if monotonic() - began_at <= self._put_timeout_s:
            # New objects that arrive faster than waiting ones are moved would keep the store away forever.
            self._away.clear()
        await asyncio.wrap_future(self._journal.unspool(reference.key))

    async def _spool(self, waiting: SpooledObject, data: bytes) -> None:
        key, size, tenant = waiting.object.key, waiting.object.size_bytes, waiting.tenant
        theirs = self._tenant_waiting_bytes[tenant]
        self._check(self._waiting_bytes, size, self._spool_bytes)
        self._check(theirs, size, self._spool_bytes // 2, " of this tenant")
        self._note(waiting)
        try:
            await asyncio.wrap_future(self._journal.spool(tenant, waiting.object, data))
        except BaseException:
            self._forget(key)
            raise
        self._publish()

    def _check(self, waiting_bytes: int, more_bytes: int, limit_bytes: int, whose: str = "") -> None:
        if waiting_bytes + more_bytes > limit_bytes:
            message = f"the object store is down, and {waiting_bytes} of {limit_bytes} spool bytes{whose} are in use"
            raise ResourceExhausted("SPOOL_FULL", message, retry_after_ms=SPOOL_RETRY_MS)

    def _note(self, waiting: SpooledObject) -> None:
        self._forget(waiting.object.key)
        self._spooled[waiting.object.key] = waiting
        self._waiting_bytes += waiting.object.size_bytes
        self._tenant_waiting_bytes[waiting.tenant] += waiting.object.size_bytes

    def _forget(self, key: str) -> bool:
        """Return whether the object was waiting."""
        waiting = self._spooled.pop(key, None)
        if waiting is None:
            return False
        self._waiting_bytes -= waiting.object.size_bytes
        self._tenant_waiting_bytes[waiting.tenant] -= waiting.object.size_bytes
        if not self._tenant_waiting_bytes[waiting.tenant]:
            del self._tenant_waiting_bytes[waiting.tenant]
        return True

    def _publish(self) -> None:
        SPOOLED_OBJECTS.set(len(self._spooled))
        SPOOLED_BYTES.set(self._waiting_bytes)

    async def _on_store(self, work: Callable[[ObjectStore], T], timeout_s: float) -> T:
        """Return the store's answer. Raises StoreUnavailable after `timeout_s`, and immediately while every thread
        hangs: calls that no caller awaits would pile up in the queue."""
        began = tuple(self._began.copy().values())
        if len(began) == _THREAD_COUNT and monotonic() - max(began) > _STUCK_S:
            raise StoreUnavailable("object store", "it does not answer")
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: self._timed(work))
        except TimeoutError:
            raise StoreUnavailable("object store", "it does not answer in time") from None

    def _timed(self, work: Callable[[ObjectStore], T]) -> T:
        """Run the work on a thread, and note when it began."""
        number = next(self._numbers)
        self._began[number] = monotonic()
        try:
            return work(self._opened())
        finally:
            del self._began[number]

    def _opened(self) -> ObjectStore:
        """Return the store, opened on a thread; two threads may open the same store twice, which is harmless."""
        if self._store is None:
            self._store = self._open_store()
        return self._store
