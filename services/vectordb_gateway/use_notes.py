"""Which items served, on their way to the access records: noted by lookups, written in rounds of the background."""

import secrets
import threading
from collections import deque
from collections.abc import Sequence

from pentimento.domain.generation import FromImage, FromLatent, Start
from pentimento.domain.retrieval import LookupAnswer, LookupCandidate
from pentimento.stores.ledger.cache_access import UseBatch
from pentimento.stores.ledger.cache_ledger import CacheLedger
from services.vectordb_gateway import metrics

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

    def note(self, candidates: Sequence[LookupCandidate], answer: LookupAnswer) -> None:
        """Note the start that saves the largest share of what a lookup found: which one is taken nobody tells."""
        found = zip(candidates, answer.starts, strict=True)
        served = [(_saved_steps(each.start) / one.scope.num_inference_steps, _key(each.start)) for one, each in found]
        share, key = max(served, key=lambda each: each[0], default=(0.0, ""))
        if share <= 0.0:
            return
        if len(self._noted) >= _MAX_NOTED_COUNT:
            metrics.USES_LOST.inc()
            return
        self._noted.append(key)

    def write(self) -> None:
        """Write what was noted, blocking. Raises StoreUnavailable; what was not written is tried again."""
        with self._writing:
            while self._given is not None or self._noted:
                self._given = self._given or self._next_batch()
                self._ledger.note_uses(self._given).result()
                self._given = None

    def _next_batch(self) -> UseBatch:
        self._number += 1
        count = min(len(self._noted), _BATCH_COUNT)
        return UseBatch(self._source, self._number, tuple(self._noted.popleft() for _ in range(count)))


def _saved_steps(start: Start) -> int:
    match start:
        case FromLatent():
            return start.resume_step
        case FromImage():
            return start.start_step
    return 0


def _key(start: Start) -> str:
    match start:
        case FromLatent():
            return start.latent.key
        case FromImage():
            return start.image.key
    return ""
