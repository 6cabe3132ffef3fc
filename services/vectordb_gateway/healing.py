"""A reader found an object missing or corrupt: look for ourselves, and take its entry out of service."""

import logging
from collections.abc import Sequence

from pentimento.domain.generation import ObjectReference
from pentimento.stores.errors import ObjectMissing, StoreUnavailable
from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.ledger.cache_records import CachedEntry
from pentimento.stores.objects import ObjectStore
from services.vectordb_gateway import metrics
from services.vectordb_gateway.store_threads import StoreThreads
from services.vectordb_gateway.validation import check_name

logger = logging.getLogger(__name__)

_THREAD_COUNT = 2


class Healing:
    """A report is verified before it costs an entry: a reader with a broken disk must not empty the cache."""

    def __init__(self, ledger: CacheLedger, objects: ObjectStore) -> None:
        self._ledger = ledger
        self._objects = objects
        # Its own: what waits for an object store that hangs keeps nobody else waiting.
        self._threads = StoreThreads(_THREAD_COUNT, "object store")

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()

    async def report(self, entry_id: str, key: str, detail: str) -> None:
        """`detail` is the reader's error, for the log. Unknown entries and keys are passed over: they may be gone.
        Raises StoreUnavailable while the object store hangs."""
        check_name("entry_id", entry_id)
        check_name("key", key)
        finding = await self._threads.run(self._examine, entry_id, key)
        metrics.BAD_OBJECTS.labels(finding).inc()
        logger.warning("object reported bad is %s", finding, extra={"entry_id": entry_id, "detail": detail[:200]})

    def _examine(self, entry_id: str, key: str) -> str:
        entry = self._ledger.live_entry(entry_id)
        held = _named(key, _held(entry) if entry else [])
        reference = held or _named(key, self._ledger.kept_by_pins(key))
        if reference is None:
            return "unknown"
        finding = self._look_at(reference)
        if finding in ("missing", "corrupt"):
            # What stays for a pin alone is no part of its entry any more, which may serve by what it has left.
            if held is not None:
                # No grace: whoever looked it up meanwhile cannot use it either.
                self._ledger.doom([entry_id], grace_s=0).result()
            self._ledger.drop_pins(key).result()
        return finding

    def _look_at(self, reference: ObjectReference) -> str:
        try:
            if self._objects.set_aside(reference):
                return "corrupt"
            self._objects.get(reference)
        except ObjectMissing:
            return "missing"
        except StoreUnavailable:
            return "unreachable"
        return "sound"


def _named(key: str, references: Sequence[ObjectReference]) -> ObjectReference | None:
    return next((reference for reference in references if reference.key == key), None)


def _held(entry: CachedEntry) -> list[ObjectReference]:
    return [latent.object for latent in entry.latents] + ([entry.image] if entry.image else [])
