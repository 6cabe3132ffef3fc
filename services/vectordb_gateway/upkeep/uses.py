"""Which items served, on their way to the access records: noted as workers took them, written in rounds of the
background."""

import secrets
import threading
from collections import deque

from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.ledger.cache.uses import UseBatch
from services.vectordb_gateway import metrics
from services.vectordb_gateway.entries.checks import check_name

# Beyond it the newest are lost while the ledger is away.
_MAX_NOTED_COUNT = 16_384
_BATCH_COUNT = 256


class UseNotes:
    """Uses that wait to be written. A batch keeps its number until the ledger acknowledges it, so it counts once."""

    def __init__(self, ledger: CacheLedger) -> None:
        self._ledger = ledger
        self._source = secrets.token_hex(8)
        self._number = 0
        self._noted: deque[str] = deque()
        self._given: UseBatch | None = None
        self._writing = threading.Lock()
        self.taken_count = 0
        self.passed_over_count = 0

    def note(self, key: str, *, from_image: bool, taken: bool) -> None:
        """Note what a worker made of the item of that key. One that it could not use was not used. Raises
        InvalidArgument for a key that is none."""
        check_name("key", key)
        kind = "image" if from_image else "latent"
        metrics.STARTS.labels(kind, "taken" if taken else "passed_over").inc()
        self.taken_count += taken
        self.passed_over_count += not taken
        if not taken:
            return
        if len(self._noted) >= _MAX_NOTED_COUNT:
            metrics.USES_LOST.inc()
            return
        self._noted.append(key)

    def write(self) -> None:
        """Write the noted uses, blocking. Raises StoreUnavailable; uses that were not written are tried again."""
        with self._writing:
            while self._given is not None or self._noted:
                self._given = self._given or self._next_batch()
                self._ledger.note_uses(self._given).result()
                self._given = None

    def _next_batch(self) -> UseBatch:
        self._number += 1
        count = min(len(self._noted), _BATCH_COUNT)
        return UseBatch(self._source, self._number, tuple(self._noted.popleft() for _ in range(count)))
