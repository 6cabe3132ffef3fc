"""Keep the gateway's ledger: grants, entries and objects. It is authoritative; the index and the object store follow
it.

Changes go through one writer with group commit and answer with futures; reads are synchronous, for threads.
"""

import secrets
from concurrent.futures import Future

from sqlalchemy import Connection, Engine, bindparam, select, update

from pentimento.domain.clock import Clock, SystemClock
from pentimento.domain.embedding import Space
from pentimento.stores.ledger.cache import tables
from pentimento.stores.ledger.cache.checks import CacheChecks
from pentimento.stores.ledger.cache.entries import IS_LIVE, CacheEntries, doom_entries
from pentimento.stores.ledger.cache.erasures import CacheErasures
from pentimento.stores.ledger.cache.evictions import CacheEvictions
from pentimento.stores.ledger.cache.grants import CacheGrants
from pentimento.stores.ledger.cache.part import lock
from pentimento.stores.ledger.cache.quality import CacheQuality
from pentimento.stores.ledger.cache.records import EncoderBinding
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.errors import typed_errors
from pentimento.stores.ledger.migrations import migrate, require_newest
from pentimento.stores.ledger.statements import Statement, insert_unless_present

_entries = tables.entries
_FORGOTTEN_AT_ONCE = 256
_MAKE_STATE = insert_unless_present(tables.state)
_CACHE_ID = Statement(select(tables.state.c.cache_id))
_SOME_LIVE = Statement(select(_entries.c.entry_id).where(IS_LIVE).limit(_FORGOTTEN_AT_ONCE))
_FORGET_LOOKS = Statement(update(_entries).where(IS_LIVE, _entries.c.image_vector.is_not(None)))
_REPLACE_ENCODER = Statement(update(tables.encoders).where(tables.encoders.c.space == bindparam("of_space")))


def open_cache_ledger(url: str, clock: Clock | None = None, *, as_it_is: bool = False) -> "CacheLedger":
    """Connect to the ledger at `url` (as in `open_engine`), migrate and return it. With `as_it_is` nothing is created
    or migrated. Raises StoreUnavailable, SchemaMismatch, InvalidArgument."""
    engine = open_engine(url)
    if as_it_is:
        require_newest(engine, tables.SCHEMA)
    else:
        migrate(engine, tables.SCHEMA)
        first = {"sequence": 0, "entry_count": 0, "object_count": 0, "size_bytes": 0, "tick": 0, "eviction_rule": ""}
        with typed_errors(), engine.begin() as connection:
            _MAKE_STATE.first(connection, singleton=1, cache_id=secrets.token_hex(8), **first)
    return CacheLedger(engine, clock or SystemClock(), str(_CACHE_ID.scalar(engine)))


class CacheLedger(CacheGrants, CacheEntries, CacheEvictions, CacheErasures, CacheQuality, CacheChecks):
    """Read and change the cache's tables. Futures and reads fail with StoreFull or StoreUnavailable."""

    def __init__(self, engine: Engine, clock: Clock, cache_id: str) -> None:
        super().__init__(engine, clock)
        self.cache_id = cache_id

    @property
    def writes_stuck_s(self) -> float:
        """Return for how many seconds no queued change has succeeded; 0 if changes succeed."""
        return self._writer.stuck_s

    def replace_encoder(self, encoder: EncoderBinding, grace_s: float) -> "Future[None]":
        """Bind a space to another encoder and drop the vectors before, which are not comparable with its own: of images
        their vectors alone, of texts the entries. Objects stay for `grace_s`."""
        now = self._clock.wall()

        def replace(connection: Connection) -> None:
            lock(connection)
            values = {"encoder_digest": encoder.encoder_digest, "dimension_count": encoder.dimension_count}
            _REPLACE_ENCODER.change(connection, of_space=encoder.space.value, **values)
            if encoder.space is Space.IMAGE:
                _FORGET_LOOKS.change(connection, image_vector=None, indexed=0)
                return
            while some := _SOME_LIVE.scalars(connection):
                doom_entries(connection, some, now, now + grace_s)

        return self._submit(replace, self._note_removal)

    def close(self) -> None:
        """Commit queued changes and disconnect from the database."""
        self._writer.close()
