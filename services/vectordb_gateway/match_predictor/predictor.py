"""The match predictor of one cache: its knowledge of the entries, updated, trained again and swapped."""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pentimento.stores.ledger.cache.records import EncoderBinding, NumberedVector
from services.vectordb_gateway.match_predictor.sign_codes import Codes, CodeSet, Sequences, SignCoder
from services.vectordb_gateway.match_predictor.support import Support, fit_support

# NIRVANA, section 5.2: trained again when more than 5 % of the entries have changed.
RETRAINING_SHARE = 0.05
# With fewer a search costs next to nothing, and there is little to train on.
_NEEDED_COUNT = 256


@dataclass(frozen=True, eq=False)
class PoolModel:
    """The knowledge of one pool: the codes of its entries, their support once there are enough, and the number of
    entries at the last training. A model per pool keeps a tenant's answers independent of other tenants' entries."""

    entries: CodeSet
    support: Support | None
    trained_count: int


class MatchPredictor:
    """Scores a prompt's vector by how near the nearest entry of its pools probably is.

    Thread-safe; a score is taken from one model, before a retraining or after it.
    """

    def __init__(self, encoder: EncoderBinding) -> None:
        self.encoder = encoder
        self._coder = SignCoder(encoder.dimension_count)
        self._pools: dict[str, PoolModel] = {}
        self._last_sequence = 0
        self._changing = threading.Lock()

    def reads(self, vector: bytes) -> bool:
        """Return whether a vector has its encoder's dimensions."""
        return len(vector) == 4 * self.encoder.dimension_count

    @property
    def last_sequence(self) -> int:
        """Return the number of the newest entry that it knows, 0 for none."""
        return self._last_sequence

    @property
    def entry_count(self) -> int:
        """Return the number of known entries, some gone by now."""
        return sum(len(model.entries) for model in list(self._pools.values()))

    @property
    def entry_size_bytes(self) -> int:
        """Return the memory that grows with the entries."""
        return sum(model.entries.size_bytes for model in list(self._pools.values()))

    @property
    def fixed_size_bytes(self) -> int:
        """Return the memory that does not: the rotation, and the support of each pool."""
        supports = [model.support for model in list(self._pools.values())]
        return self._coder.size_bytes + sum(each.size_bytes for each in supports if each is not None)

    def score_in(self, pools: Sequence[str], vector: bytes) -> float:
        """Return the score of a unit vector for entries of the pools; infinity if a pool is not known yet."""
        code = self._coder.encode(np.frombuffer(vector, np.float32)[None])[0]
        return max(self._score(self._pools.get(pool), code) for pool in pools)

    def add(self, entries: Sequence[NumberedVector]) -> None:
        """Changes state: learn of new entries, at once and without training; those it knows are passed over."""
        with self._changing:
            fresh = [entry for entry in entries if entry.sequence > self._last_sequence]
            for pool in dict.fromkeys(entry.pool for entry in fresh):
                self._add_to(pool, [entry for entry in fresh if entry.pool == pool])
            self._last_sequence = max([self._last_sequence, *(entry.sequence for entry in fresh)])

    def is_stale(self, live_count: int) -> bool:
        """Return whether more than 5 % of the entries came or went since the last training; `live_count` are left."""
        models = list(self._pools.values())
        trained = sum(model.trained_count for model in models)
        known = sum(len(model.entries) for model in models)
        return known - trained + max(0, known - live_count) > RETRAINING_SHARE * trained

    def retrain(self, live: Sequences, known_until: int | None = None) -> None:
        """Changes state: forget the entries that are not live, and train on the rest. Blocks.

        Raises the error of a failed training, and keeps the former support. `known_until` is `last_sequence` before
        `live` was read: later entries stay. None: no later entries.
        """
        with self._changing:
            until = self._last_sequence if known_until is None else known_until
            left = {pool: model.entries.kept(live, until).codes for pool, model in self._pools.items()}
        # Without the lock: entries of commits are learnt meanwhile.
        trained = {pool: fit_support(codes) for pool, codes in left.items() if len(codes) >= _NEEDED_COUNT}
        with self._changing:
            kept = {pool: model.entries.kept(live, until) for pool, model in self._pools.items()}
            self._pools = {
                pool: PoolModel(entries, trained.get(pool), len(left.get(pool, ())))
                for pool, entries in kept.items()
                if len(entries)
            }

    def _score(self, model: PoolModel | None, code: Codes) -> float:
        if model is None or model.support is None:
            return math.inf
        return model.support.decide(code, model.entries)

    def _add_to(self, pool: str, entries: Sequence[NumberedVector]) -> None:
        rows = np.frombuffer(b"".join(entry.text for entry in entries), np.float32).reshape(len(entries), -1)
        codes = self._coder.encode(rows)
        numbers = np.array([entry.sequence for entry in entries], np.int64)
        model = self._pools.get(pool)
        if model is None:
            self._pools = {**self._pools, pool: PoolModel(CodeSet(codes, numbers), None, 0)}
        else:
            model.entries.add(codes, numbers)
