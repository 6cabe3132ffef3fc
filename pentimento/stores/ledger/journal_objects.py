"""Keep the objects that wait in the journal for their store, and the images that its rows name."""

import os
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from sqlalchemy import URL, Connection, and_, bindparam, delete, func, literal_column, select, update

from pentimento.domain.clock import Clock
from pentimento.domain.generation import ObjectReference
from pentimento.stores.ledger import journal_tables as tables
from pentimento.stores.ledger.database import insert_unless_present_in, lift_time_limit
from pentimento.stores.ledger.journal_pins import pinned_keys
from pentimento.stores.ledger.records import KeptResults, SpooledObject
from pentimento.stores.ledger.statements import Statement
from pentimento.stores.ledger.writer import GroupCommitWriter, LedgerReader, submitted

_requests = tables.requests
_spool = tables.spool
_columns = _requests.c
# The row of a deleted image has an empty key.
_HAS_PICTURE = and_(_columns.image_key.is_not(None), _columns.image_key != literal_column("''"))
# While the store is away every image passes through these statements.
_IS_SPOOLED = _spool.c.key == bindparam("id")
_SPOOL = Statement(lambda dialect: insert_unless_present_in(dialect, _spool))
_READ_SPOOLED = Statement(lambda _: select(_spool.c.data).where(_IS_SPOOLED))
_UNSPOOL = Statement(lambda _: delete(_spool).where(_IS_SPOOLED))
_FORGOTTEN_AT_ONCE = 200
_PAGES_AT_ONCE = 1024


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

    def spool(self, tenant: str, reference: ObjectReference, data: bytes) -> "Future[bool]":
        """Store an object until its object store takes it; False if it is spooled already."""
        row = {
            "key": reference.key,
            "tenant": tenant,
            "digest": reference.digest,
            "size_bytes": reference.size_bytes,
            "data": data,
        }
        return self._submit(lambda connection: _SPOOL.first(connection, row) is not None)

    @submitted
    def spooled(self, connection: Connection) -> list[SpooledObject]:
        """Return all spooled objects."""
        rows = connection.execute(select(_spool.c.tenant, _spool.c.key, _spool.c.digest, _spool.c.size_bytes))
        return [SpooledObject(row.tenant, ObjectReference(row.key, row.digest, row.size_bytes)) for row in rows]

    @submitted
    def read_spooled(self, connection: Connection, key: str) -> bytes | None:
        """Return the spooled bytes of the key; None if there are none."""
        row = _READ_SPOOLED.first(connection, {"id": key})
        return bytes(row[0]) if row is not None else None

    def unspool(self, key: str) -> "Future[bool]":
        """Delete the spooled object of the key; False if there is none."""
        return self._submit(lambda connection: _UNSPOOL.changed_count(connection, {"id": key}) == 1)

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

    def named(self, keys: Sequence[str]) -> "Future[set[str]]":
        """Return the keys that a request's image or a pinned request's input has."""
        pictures = select(_columns.image_key).where(_columns.image_key.in_(keys))
        inputs = pinned_keys(self._clock.wall()).where(tables.pinned_inputs.c.key.in_(keys))
        return self._submit(lambda connection: {*connection.scalars(pictures), *connection.scalars(inputs)})

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
    have_ended = select(_columns.tenant, func.count()).where(_columns.finished_at.is_not(None))
    of_pictures = select(_columns.tenant, func.sum(_columns.image_size_bytes)).where(_HAS_PICTURE)
    picture_bytes = {tenant: int(total) for tenant, total in connection.execute(of_pictures.group_by(_columns.tenant))}
    counted = connection.execute(have_ended.group_by(_columns.tenant))
    return [KeptResults(tenant, count, picture_bytes.get(tenant, 0)) for tenant, count in counted]


def _forget_pictures(
    connection: Connection, tenant: str, size_bytes: int, since: float
) -> tuple[list[ObjectReference], float]:
    """Remove images of requests that ended since `since`; return the images, and the end time of the last of their
    requests."""
    image = (_columns.image_key, _columns.image_digest, _columns.image_size_bytes)
    oldest = (
        select(_columns.request_id, _columns.finished_at, *image)
        .where(_columns.tenant == tenant, _columns.finished_at >= since, _HAS_PICTURE)
        .order_by(_columns.finished_at)
        .limit(_FORGOTTEN_AT_ONCE)
    )
    ids, forgotten, freed, until = [], [], 0, since
    for request_id, finished_at, *reference in connection.execute(oldest):
        if freed >= size_bytes:
            break
        ids.append(request_id)
        forgotten.append(ObjectReference(*reference))
        freed += forgotten[-1].size_bytes
        until = finished_at
    connection.execute(update(_requests).where(_columns.request_id.in_(ids)).values(image_key=""))
    return forgotten, until


def _give_back_pages(connection: Connection) -> None:
    if connection.dialect.name != "sqlite":
        return
    free_count = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
    cursor = connection.connection.cursor()
    for _ in range(min(free_count, _PAGES_AT_ONCE)):
        # The driver runs one step of a statement without rows, which is one page.
        cursor.execute("PRAGMA incremental_vacuum(1)")
