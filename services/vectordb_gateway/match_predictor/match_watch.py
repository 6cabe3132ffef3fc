"""The predictor at work beside lookups: asked before a search, told after it, kept up to date in the background."""

import logging
import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter

import numpy as np

from pentimento.policies.match_prediction import GateSettings, LookupPrices, MatchGate, Ruling
from pentimento.stores.ledger.cache_ledger import CacheLedger
from services.vectordb_gateway import metrics
from services.vectordb_gateway.match_predictor.predictor import MatchPredictor
from services.vectordb_gateway.settings import MatchPredictorChoice, MatchPredictorSettings

logger = logging.getLogger(__name__)

_BATCH_COUNT = 256
# A search that is faster cannot pay for the memory of scikit-learn, let alone for a forgone hit.
_LEAST_SEARCH_S = 0.002
# The newest searches, of which the quickest twentieth tells how fast they are: what a busy processor adds to others, it
# adds to predictions as well.
_TIMED_COUNT = 64
_QUICK_COUNT = 3
# Weight of a new measurement in the running means of what searches and predictions take.
_FRESHNESS = 0.05
_RECALL = 0.95
# Share of the time of searches that predictions may take while the gate is off, unless it is to go on whatever it
# gains: they help nobody then.
_STUDY_SHARE = 0.1
# Lookups from which it learns before it rules on any.
_NEEDED_COUNT = 256


@dataclass(frozen=True)
class Forecast:
    """What was predicted of one lookup before its search. `score` is None where nothing was asked yet."""

    ruling: Ruling
    score: float | None
    pools: tuple[str, ...]
    vector: bytes


class MatchWatch:
    """Rules on lookups, learns from them, follows the ledger. Thread-safe.

    While the gate is off the scorer is asked after the answer, so that it costs a lookup nothing, and of so few that it
    takes a tenth of the processor that searches take.
    """

    def __init__(self, ledger: CacheLedger, settings: MatchPredictorSettings, random: Random | None = None) -> None:
        self._ledger = ledger
        self._settings = settings
        self._random = random or Random()
        self._always = settings.match_predictor is MatchPredictorChoice.ALWAYS
        self._gate = MatchGate(GateSettings(needed_count=_NEEDED_COUNT, recall=_RECALL if self._always else None))
        self._study_share = math.inf if self._always else _STUDY_SHARE
        self._predictor: MatchPredictor | None = None
        self._search_s = self._prediction_s = 0.0
        self._timed: deque[float] = deque(maxlen=_TIMED_COUNT)
        self._booking, self._following, self._studying = threading.Lock(), threading.Lock(), threading.Lock()
        # Whether the ledger may have entries that whoever follows has not read.
        self._behind = threading.Event()

    @property
    def enabled(self) -> bool:
        """Whether there is a predictor at all."""
        return self._settings.match_predictor is not MatchPredictorChoice.OFF

    @property
    def prices(self) -> LookupPrices:
        """Return what a search, a picture and a prediction take, in seconds, as measured so far."""
        return LookupPrices(self._search_s, self._settings.match_predictor_generation_s, self._prediction_s)

    @property
    def rules(self) -> bool:
        """Whether lookups are scored before their searches."""
        return self._predictor is not None and self._gate.on

    def forecast(self, pools: tuple[str, ...], vector: bytes) -> Forecast:
        """Return whether a search for the vector among the entries of these pools is worth its time."""
        predictor = self._predictor
        if predictor is None or not self._gate.on:
            return Forecast(Ruling.SEARCH, None, pools, vector)
        score = self._score(predictor, pools, vector)
        with self._booking:
            ruling = self._gate.rule(score, self._random.random())
            if ruling is Ruling.SKIP:
                self._gate.note_skipped(self.prices)
        metrics.PREDICTIONS.labels(ruling.value).inc()
        return Forecast(ruling, score, pools, vector)

    def note_search(self, forecast: Forecast, search_s: float, saved_share: float) -> None:
        """Changes state: learn what a search took and what share of the steps it saves, 0 for a miss."""
        with self._booking:
            self._search_s = _running_mean(self._search_s, search_s)
            self._timed.append(search_s)
            if forecast.score is not None:
                self._gate.note_searched(forecast.ruling, forecast.score, saved_share, self.prices)

    def wants_to_study(self, forecast: Forecast) -> bool:
        """Return whether the scorer was not asked about this lookup, can be now, and is not asked too often."""
        if self._predictor is None or forecast.score is not None:
            return False
        return self._random.random() * self._prediction_s < self._study_share * self._search_s

    def study(self, forecast: Forecast, saved_share: float) -> None:
        """Changes state: learn what the scorer would have said to a lookup that it was not asked about. One at a time:
        where scoring takes longer than lookups come, some are passed over."""
        predictor = self._predictor
        if predictor is None or not self._studying.acquire(blocking=False):
            return
        try:
            score = self._score(predictor, forecast.pools, forecast.vector)
        finally:
            self._studying.release()
        with self._booking:
            self._gate.note_searched(Ruling.SEARCH, score, saved_share, self.prices)

    def follow(self) -> None:
        """Changes state: learn of entries that the ledger has got since. Blocks; raises StoreUnavailable. Where another
        thread is at it, that one learns of these too: a million entries take half a minute, and no commit waits."""
        predictor = self._predictor
        if predictor is None:
            return
        self._behind.set()
        while self._behind.is_set() and self._following.acquire(blocking=False):
            try:
                self._behind.clear()
                while entries := self._ledger.vectors_after(predictor.last_sequence, _BATCH_COUNT):
                    predictor.add(entries)
            finally:
                self._following.release()

    def maintain(self) -> None:
        """Changes state: one background round. Blocks.

        Raises StoreUnavailable, and whatever a training raises; searches go on as before.
        """
        if not self.enabled or not self._is_worth_it():
            return
        self._open()
        self.follow()
        self._retrain_if_stale()
        with self._booking:
            self._gate.review(self.prices)
        self._publish()

    def _is_worth_it(self) -> bool:
        if self._predictor is not None or self._always:
            return True
        with self._booking:
            timed = sorted(self._timed)
        return len(timed) == _TIMED_COUNT and timed[_QUICK_COUNT] > _LEAST_SEARCH_S

    def _open(self) -> None:
        binding = self._ledger.binding()
        if self._predictor is None and binding is not None:
            self._predictor = MatchPredictor(binding)

    def _retrain_if_stale(self) -> None:
        predictor = self._predictor
        if predictor is not None and predictor.is_stale(self._ledger.totals().entry_count):
            # Commits go on meanwhile, and have their entries learnt of.
            known_until = predictor.last_sequence
            predictor.retrain(np.array(self._ledger.live_sequences(), np.int64), known_until)
            metrics.PREDICTOR_TRAININGS.inc()

    def _score(self, predictor: MatchPredictor, pools: Sequence[str], vector: bytes) -> float:
        began_s = perf_counter()
        score = predictor.score_in(pools, vector)
        self._prediction_s = _running_mean(self._prediction_s, perf_counter() - began_s)
        return score

    def _publish(self) -> None:
        metrics.PREDICTOR_ON.set(self._gate.on)
        metrics.PREDICTOR_NET_SECONDS.set(self._gate.total.net_s)


def _running_mean(mean: float, value: float) -> float:
    return value if mean == 0 else mean + _FRESHNESS * (value - mean)
