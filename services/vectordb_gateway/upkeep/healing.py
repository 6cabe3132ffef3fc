"""Reports of missing and corrupt objects: each is verified, and its entry is not found until a reading is good."""

import logging
from collections.abc import Sequence

from pentimento.domain.generation import ObjectReference
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing, StoreUnavailable
from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.ledger.cache.records import CachedEntry
from pentimento.stores.objects import ObjectStore
from pentimento.stores.objects.suspects import Suspects
from services.vectordb_gateway import metrics
from services.vectordb_gateway.entries.checks import check_name
from services.vectordb_gateway.upkeep.store_calls import StoreThreads

logger = logging.getLogger(__name__)

_THREAD_COUNT = 2
# In one round of maintenance, which waits for the store.
_READ_AT_ONCE = 32


class Healing:
    """Verifies reports: neither a reader with a broken disk nor a store that returns wrong data for a while may empty
    the cache. An entry is not found while an object of it is suspect, and it is lost with the third bad reading."""

    def __init__(self, ledger: CacheLedger, objects: ObjectStore, suspects: Suspects) -> None:
        self._ledger = ledger
        self._objects = objects
        self.suspects = suspects
        # A pool of threads for the object store alone: when it hangs, no other call waits.
        self._threads = StoreThreads(_THREAD_COUNT, "object store")

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()

    async def report(self, entry_id: str, key: str, detail: str) -> None:
        """Verify a report; `detail` is the reader's error, for the log. Unknown entries and keys are passed over: they
        may be gone. Raises StoreUnavailable while the object store hangs."""
        check_name("entry_id", entry_id)
        check_name("key", key)
        finding = await self._threads.run(self._examine, entry_id, key)
        metrics.BAD_OBJECTS.labels(finding).inc()
        logger.warning("object reported bad is %s", finding, extra={"entry_id": entry_id, "detail": detail[:200]})

    def read_suspects(self) -> None:
        """Read the suspect objects again that are due. Blocks; changes state."""
        for reference, entry_id in self.suspects.due(_READ_AT_ONCE):
            finding = self._examine(entry_id, reference.key)
            if reference.key not in self.suspects:
                logger.warning("a suspect object is %s", finding, extra={"entry_id": entry_id})
        metrics.SUSPECT_OBJECTS.set(len(self.suspects))

    def _examine(self, entry_id: str, key: str) -> str:
        entry = self._ledger.live_entry(entry_id)
        held = _named(key, _held(entry) if entry else [])
        reference = held or _named(key, self._ledger.kept_by_pins(key))
        finding = "unknown" if reference is None else self._look_at(reference)
        if reference is None or finding == "sound":
            self.suspects.note_good(key)
        elif finding in ("missing", "corrupt"):
            holder = entry_id if held is not None else ""
            if self.suspects.note_bad(reference, holder):
                if finding == "missing" or self._objects.set_aside(reference):
                    self._give_up(holder, key)
                self.suspects.note_good(key)
        return finding

    def _give_up(self, entry_id: str, key: str) -> None:
        """Drop an entry and the pins of its object. `entry_id` is "" for an object that only a pin keeps: its entry may
        still serve by its other objects."""
        if entry_id:
            # No grace: lookups have not found it for a while.
            self._ledger.doom([entry_id], grace_s=0).result()
        self._ledger.drop_pins(key).result()

    def _look_at(self, reference: ObjectReference) -> str:
        try:
            self._objects.get(reference)
        except ObjectMissing:
            return "missing"
        except ObjectCorrupt:
            return "corrupt"
        except StoreUnavailable:
            return "unreachable"
        return "sound"


def _named(key: str, references: Sequence[ObjectReference]) -> ObjectReference | None:
    return next((reference for reference in references if reference.key == key), None)


def _held(entry: CachedEntry) -> list[ObjectReference]:
    return [latent.object for latent in entry.latents] + ([entry.image] if entry.image else [])
