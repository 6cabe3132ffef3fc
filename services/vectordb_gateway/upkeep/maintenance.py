"""Run the background work in rounds: each task is repeatable, and one that fails leaves the others running."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence

from pentimento.domain.errors import PentimentoError
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.objects import ObjectStore
from services.vectordb_gateway import metrics
from services.vectordb_gateway.entries.capacity import Capacity
from services.vectordb_gateway.entries.rules import QualityWatch
from services.vectordb_gateway.match_predictor.match_watch import MatchWatch
from services.vectordb_gateway.settings import GatewayBounds
from services.vectordb_gateway.upkeep.healing import Healing
from services.vectordb_gateway.upkeep.indexing import Indexing, batches
from services.vectordb_gateway.upkeep.uses import UseNotes

logger = logging.getLogger(__name__)

# The store counts as away after this number of refusals, or one that takes this long.
_MOST_REFUSED, _REFUSAL_S = 8, 5.0
# A store that was away for long: beyond this number all objects are tried again.
_MOST_KEPT_BACK = 4096
_BATCH_COUNT = 256
# Age at which an unfinished S3 upload is deleted: no worker uploads for so long.
UNFINISHED_UPLOAD_S = 3600.0


class Deletion:
    """Deletes objects. An object that the store refuses to delete is kept back until all others are gone."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._kept_back: set[str] = set()
        self._refusal: StoreUnavailable | None = None

    @property
    def kept_back_count(self) -> int:
        """Return how many objects wait until all others are gone."""
        return len(self._kept_back)

    def due(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that are not kept back."""
        return [key for key in keys if key not in self._kept_back]

    def delete(self, keys: Collection[str]) -> tuple[list[str], StoreUnavailable | None]:
        """Delete the objects; return the keys of deleted objects, and the error that ends the attempt: a store that is
        away is not asked for each object."""
        gone: list[str] = []
        refused_count = 0
        for key in keys:
            began_s = time.monotonic()
            try:
                self._objects.delete(key)
                gone.append(key)
            except StoreUnavailable as error:
                self._keep_back(key, error)
                refused_count += 1
                if refused_count == _MOST_REFUSED or time.monotonic() - began_s > _REFUSAL_S:
                    return gone, error
        return gone, None

    def end(self) -> None:
        """Begin again with the objects kept back, now that all others are gone. Raises StoreUnavailable if there was
        any."""
        refusal, self._refusal = self._refusal, None
        self._kept_back.clear()
        if refusal is not None:
            raise refusal

    def _keep_back(self, key: str, refusal: StoreUnavailable) -> None:
        if len(self._kept_back) >= _MOST_KEPT_BACK:
            self._kept_back.clear()
        self._kept_back.add(key)
        self._refusal = refusal


class Maintenance:
    """Expiry, eviction, deletion (index first, objects second), and putting right what crashes left."""

    def __init__(
        self,
        ledger: CacheLedger,
        objects: ObjectStore,
        indexing: Indexing,
        capacity: Capacity,
        bounds: GatewayBounds,
        watch: MatchWatch,
        uses: UseNotes | None = None,
        quality: QualityWatch | None = None,
        healing: Healing | None = None,
    ) -> None:
        self._ledger = ledger
        self._objects = objects
        self._orphans, self._doomed = Deletion(objects), Deletion(objects)
        self._indexing = indexing
        self._capacity = capacity
        self._bounds = bounds
        self._watch = watch
        self._uses = uses
        self._quality = quality
        self._healing = healing
        self._swept_at: float | None = None
        self._compared_at: float | None = None
        self._failing: set[str] = set()
        self._task_since: float | None = None

    @property
    def stuck_s(self) -> float:
        """Return for how many seconds the task that runs now has been running; 0 between rounds."""
        since = self._task_since
        return 0.0 if since is None else time.monotonic() - since

    async def run(self) -> None:
        """Run a round at every interval, until cancelled."""
        while True:
            await asyncio.to_thread(self.run_round)
            await asyncio.sleep(self._bounds.maintenance_interval_s)

    def run_round(self) -> None:
        """Run one round, blocking. Never raises for a store that is away."""
        self._try("expire_grants", self._expire_grants)
        # Each task by itself: objects are not compared again because the index is away.
        if self._is_due(self._swept_at):
            self._try("sweep_uploads", self._sweep_uploads)
            self._try("measure_store", self._capacity.measure_store)
            self._try("delete_orphans", self._delete_orphans)
        compares = self._is_due(self._compared_at) or self._indexing.may_lack_points
        if compares and self._try("reconcile", self._indexing.reconcile):
            self._compared_at = time.monotonic()
        if self._uses is not None:
            self._try("write_uses", self._uses.write)
        self._try("follow_rule", self._capacity.follow_rule)
        self._try("enforce_limits", self._capacity.enforce)
        self._try("index_new", self._indexing.index_new)
        if self._healing is not None:
            self._try("read_suspects", self._healing.read_suspects)
        self._try("remove_doomed", self._indexing.remove_doomed)
        self._try("delete_objects", self._delete_objects)
        self._try("match_predictor", self._watch.maintain)
        if self._quality is not None:
            self._try("follow_quality", self._quality.refresh)

    def request_reconciliation(self) -> None:
        """Compare index, objects and ledger in the next round."""
        self._swept_at = self._compared_at = None

    def _is_due(self, last: float | None) -> bool:
        return last is None or time.monotonic() - last >= self._bounds.reconcile_interval_s

    def _expire_grants(self) -> None:
        released = self._ledger.expire_grants().result()
        if released:
            metrics.GRANTS.labels("expired").inc(released)

    def _delete_orphans(self) -> None:
        """Delete objects without a row: uploads that came after their grant was gone."""
        # Listed before the ledger is read: a key is in the ledger before any upload under it.
        found = list(self._objects.keys(f"cache/{self._ledger.cache_id}/"))
        for batch in batches(found, _BATCH_COUNT):
            known = self._ledger.known_keys(batch)
            gone, refusal = self._orphans.delete(self._orphans.due([key for key in batch if key not in known]))
            metrics.REPAIRS.labels("orphan_object").inc(len(gone))
            if refusal is not None:
                raise refusal
        # A refused deletion is no reason to list the store again in every round.
        self._swept_at = time.monotonic()
        self._orphans.end()

    def _sweep_uploads(self) -> None:
        """Delete the parts of uploads with dead writers."""
        swept = self._objects.sweep_uploads(UNFINISHED_UPLOAD_S)
        metrics.REPAIRS.labels("unfinished_upload").inc(swept)

    def _delete_objects(self) -> None:
        while keys := self._deletable_keys():
            # An object that was pinned meanwhile stays.
            claimed = self._ledger.claim_deletion(keys).result()
            gone, refusal = self._doomed.delete(claimed)
            self._ledger.forget_objects(gone).result()
            if refusal is not None:
                raise refusal
        self._doomed.end()

    def _deletable_keys(self) -> list[str]:
        keys = self._ledger.deletable_keys(_BATCH_COUNT + self._doomed.kept_back_count)
        return self._doomed.due(keys)[:_BATCH_COUNT]

    def _try(self, name: str, task: Callable[[], None]) -> bool:
        """Return whether the task succeeded; an outage is logged once, and counted every time."""
        self._task_since = time.monotonic()
        try:
            task()
        except Exception as error:  # every error is tried again in the next round
            metrics.MAINTENANCE_FAILURES.labels(name).inc()
            if name not in self._failing:
                is_defect = not isinstance(error, PentimentoError)
                logger.warning("%s failed and will be tried again: %s", name, error, exc_info=is_defect)
            self._failing.add(name)
            return False
        finally:
            self._task_since = None
        if name in self._failing:
            self._failing.discard(name)
            logger.info("%s works again", name)
        return True
