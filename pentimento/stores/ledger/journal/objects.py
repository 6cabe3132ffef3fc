"""Keep the objects that wait in the journal for their store, and the images that its rows name."""

import os
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from sqlalchemy import URL, Connection, and_, bindparam, delete, func, literal_column, select, text, update

from pentimento.domain.clock import Clock
from pentimento.domain.generation import ObjectReference
from pentimento.stores.ledger.database import lift_time_limit
from pentimento.stores.ledger.journal import tables
from pentimento.stores.ledger.journal.pins import PINNED_KEYS
from pentimento.stores.ledger.journal.records import KeptResults, SpooledObject
from pentimento.stores.ledger.statements import Statement, among, insert_unless_present, run_by_driver
from pentimento.stores.ledger.writer import GroupCommitWriter, LedgerReader, submitted

_requests = tables.requests
_spool = tables.spool
_columns = _requests.c
# The row of a deleted image has an empty key.
_HAS_PICTURE = and_(_columns.image_key.is_not(None), _columns.image_key != literal_column("''"))
_FORGOTTEN_AT_ONCE = 200
_PAGES_AT_ONCE = 1024
_IS_SPOOLED = _spool.c.key == bindparam("id")
_SPOOL = insert_unless_present(_spool)
_SPOOLED = Statement(select(*_spool.c["tenant", "key", "digest", "size_bytes"]))
_READ_SPOOLED = Statement(select(_spool.c.data).where(_IS_SPOOLED))
_UNSPOOL = Statement(delete(_spool).where(_IS_SPOOLED))
_NAMED_IMAGES = Statement(select(_columns.image_key).where(among(_columns.image_key, "keys")))
_NAMED_INPUTS = Statement(PINNED_KEYS.where(among(tables.pinned_inputs.c.key, "keys")))
_ENDED_COUNTS = Statement(
    select(_columns.tenant, func.count()).where(_columns.finished_at.is_not(None)).group_by(_columns.tenant)
)
_IMAGE_BYTES = Statement(
    select(_columns.tenant, func.sum(_columns.image_size_bytes)).where(_HAS_PICTURE).group_by(_columns.tenant)
)
_OLDEST_IMAGES = Statement(
    select(*_columns["request_id", "finished_at", "image_key", "image_digest", "image_size_bytes"])
    .where(_columns.tenant == bindparam("of_tenant"), _columns.finished_at >= bindparam("since"), _HAS_PICTURE)
    .order_by(_columns.finished_at)
    .limit(_FORGOTTEN_AT_ONCE)
)
_FORGET_IMAGES = Statement(update(_requests).where(among(_columns.request_id, "ids")).values(image_key=""))
_FREE_PAGES = Statement(text("PRAGMA freelist_count"))


class JournalObjects:
    """Keep the spool and the stored images of a journal. Futures are as the journal's: each resolves after the commit,
    fails with StoreFull or StoreUnavailable, and its call may be repeated."""

    def __init__(self, writer: GroupCommitWriter, reader: LedgerReader, url: URL, clock: Clock) -> None:
        self._submit = writer.submit
        self._reader = reader
        self._clock = clock
        # The end time of the last request that lost its image, by tenant: earlier requests have none.
        self._forgotten_until: dict[str, float] = {}
        self._file = Path(url.database) if url.drivername == "sqlite" and url.database else None

    @submitted
    def spool(self, connection: Connection, tenant: str, reference: ObjectReference, data: bytes) -> bool:
        """Store an object until its object store takes it; False if it is spooled already."""
        return _SPOOL.first(connection, tenant=tenant, data=data, **vars(reference)) is not None

    @submitted
    def spooled(self, connection: Connection) -> list[SpooledObject]:
        """Return all spooled objects."""
        return [SpooledObject(tenant, ObjectReference(*named)) for tenant, *named in _SPOOLED.rows(connection)]

    @submitted
    def read_spooled(self, connection: Connection, key: str) -> bytes | None:
        """Return the spooled bytes of the key; None if there are none."""
        data = _READ_SPOOLED.scalar(connection, id=key)
        return bytes(data) if data is not None else None

    @submitted
    def unspool(self, connection: Connection, key: str) -> bool:
        """Delete the spooled object of the key; False if there is none."""
        return _UNSPOOL.change(connection, id=key) == 1

    def kept(self) -> "Future[list[KeptResults]]":
        """Return the totals of every tenant's ended requests. The reader's thread counts from indexes only: there may
        be millions of rows."""
        return self._reader.submit(_kept)

    def forget_pictures(self, tenant: str, size_bytes: int) -> "Future[list[ObjectReference]]":
        """Remove the tenant's oldest images from their rows, at least `size_bytes` or up to a limit of their number,
        and return them for deletion. Their requests stay."""
        since = self._forgotten_until.get(tenant, 0.0)
        until = since

        def work(connection: Connection) -> list[ObjectReference]:
            nonlocal until
            forgotten, until = _forget_pictures(connection, tenant, size_bytes, since)
            if not forgotten and since:
                # A clock that was set back may have left some earlier ones.
                forgotten, until = _forget_pictures(connection, tenant, size_bytes, 0.0)
            return forgotten

        return self._submit(work, lambda: self._forgotten_until.update({tenant: until}))

    @submitted
    def named(self, connection: Connection, keys: Sequence[str]) -> set[str]:
        """Return the keys that a request's image or a pinned request's input has."""
        inputs = _NAMED_INPUTS.scalars(connection, keys=keys, now=self._clock.wall())
        return {*_NAMED_IMAGES.scalars(connection, keys=keys), *inputs}

    def give_back_pages(self) -> "Future[None]":
        """Shrink SQLite's file by some of its unused pages. PostgreSQL reuses pages by itself."""
        return self._submit(_give_back_pages)

    def free_bytes(self) -> int | None:
        """Return the free bytes on the disk of SQLite's file; None for a server, and while the disk cannot be read.
        Blocks."""
        if self._file is None:
            return None
        try:
            found = os.statvfs(self._file.parent)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize


def _kept(connection: Connection) -> list[KeptResults]:
    # Over millions of rows it takes longer than any other statement, and every start needs it.
    lift_time_limit(connection)
    picture_bytes = {tenant: int(total) for tenant, total in _IMAGE_BYTES.rows(connection)}
    counted = _ENDED_COUNTS.rows(connection)
    return [KeptResults(tenant, count, picture_bytes.get(tenant, 0)) for tenant, count in counted]


def _forget_pictures(
    connection: Connection, tenant: str, size_bytes: int, since: float
) -> tuple[list[ObjectReference], float]:
    """Remove images of requests that ended since `since`; return the images, and the end time of the last of their
    requests."""
    ids, forgotten, freed, until = [], [], 0, since
    for request_id, finished_at, *reference in _OLDEST_IMAGES.rows(connection, of_tenant=tenant, since=since):
        if freed >= size_bytes:
            break
        ids.append(request_id)
        forgotten.append(ObjectReference(*reference))
        freed += forgotten[-1].size_bytes
        until = finished_at
    _FORGET_IMAGES.change(connection, ids=ids)
    return forgotten, until


def _give_back_pages(connection: Connection) -> None:
    if connection.dialect.name != "sqlite":
        return
    for _ in range(min(_FREE_PAGES.scalar(connection), _PAGES_AT_ONCE)):
        # The driver runs one step of a statement without rows, which is one page.
        run_by_driver(connection, "PRAGMA incremental_vacuum(1)")
