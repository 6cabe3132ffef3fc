"""Run the predictor with lookups: it rules before a search, learns after it, and is kept up to date in the
background."""

import logging
import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter

import numpy as np

from pentimento.policies.match_prediction import LookupPrices, MatchGate, NetLatency, Ruling
from pentimento.stores.ledger.cache.ledger import CacheLedger
from services.vectordb_gateway import metrics
from services.vectordb_gateway.match_predictor.predictor import MatchPredictor
from services.vectordb_gateway.settings import MatchPredictorChoice

logger = logging.getLogger(__name__)

_BATCH_COUNT = 256
# A search that is faster cannot pay for the memory of scikit-learn, let alone for a forgone hit.
_LEAST_SEARCH_S = 0.002
# The newest searches; their quickest twentieth tells the speed of searches: a busy processor slows the others, and
# predictions as much.
_TIMED_COUNT = 64
_QUICK_COUNT = 3
# Weight of a new measurement in the running means of what searches and predictions take.
_FRESHNESS = 0.05
_RECALL = 0.95
# Share of the time of searches that predictions may take while the gate is off, unless the predictor always runs: they
# save nothing then.
_STUDY_SHARE = 0.1
# A score takes about 1 ms for as many.
_LOOP_ENTRY_COUNT = 100_000
# Lookups that it learns from before it rules on any.
_NEEDED_COUNT = 256


@dataclass(frozen=True)
class Forecast:
    """The prediction of one lookup before its search. `score` is None if the scorer did not run yet."""

    ruling: Ruling
    score: float | None
    pools: tuple[str, ...]
    vector: bytes


@dataclass(frozen=True)
class Standing:
    """Whether searches are skipped, why, the measured prices (0: not known yet), and what skipping gained so far."""

    on: bool
    why: str
    prices: LookupPrices
    total: NetLatency


class MatchWatch:
    """Rules on lookups, learns from them, follows the ledger. Thread-safe.

    While the gate is off the scorer runs after the answer, so that it costs a lookup nothing, and for few enough
    lookups to take a tenth of the processor time of searches.
    """

    def __init__(
        self,
        ledger: CacheLedger,
        choice: MatchPredictorChoice = MatchPredictorChoice.AUTO,
        random: Random | None = None,
    ) -> None:
        self._ledger = ledger
        self._random = random or Random()
        self._enabled = choice is not MatchPredictorChoice.OFF
        self._always = choice is MatchPredictorChoice.ALWAYS
        self._gate = MatchGate(_NEEDED_COUNT, _RECALL if self._always else None)
        self._study_share = math.inf if self._always else _STUDY_SHARE
        self._predictor: MatchPredictor | None = None
        self._search_s = self._prediction_s = self._image_s = 0.0
        self._timed: deque[float] = deque(maxlen=_TIMED_COUNT)
        self._booking, self._following, self._studying = threading.Lock(), threading.Lock(), threading.Lock()
        # Whether the ledger may have entries that the following thread has not read.
        self._behind = threading.Event()

    @property
    def prices(self) -> LookupPrices:
        """Return the seconds of a search, an image and a prediction, as measured so far."""
        return LookupPrices(self._search_s, self._image_s, self._prediction_s)

    @property
    def standing(self) -> Standing:
        """Return whether it is on, and why."""
        with self._booking:
            return Standing(self._gate.on, self._why(), self.prices, self._gate.total)

    def _why(self) -> str:
        if not self._enabled:
            return "by the settings"
        timed = sorted(self._timed)
        if self._predictor is None and len(timed) < _TIMED_COUNT:
            return f"{len(timed)} of {_TIMED_COUNT} searches timed"
        if self._predictor is None and timed[_QUICK_COUNT] <= _LEAST_SEARCH_S:
            taken_ms, least_ms = 1000 * timed[_QUICK_COUNT], 1000 * _LEAST_SEARCH_S
            return f"a search takes {taken_ms:.1f} ms, predictions pay from {least_ms:g} ms on"
        if not (self._image_s or self._always):
            return "no frontdoor says what an image takes"
        return self._gate.why

    @property
    def scores_slowly(self) -> bool:
        """Return whether a forecast would hold an event loop: a score compares the codes of all entries."""
        predictor = self._predictor
        return predictor is not None and self._gate.on and predictor.entry_count > _LOOP_ENTRY_COUNT

    def forecast(self, pools: tuple[str, ...], vector: bytes) -> Forecast:
        """Return whether a search for the vector in these pools is worth its time."""
        predictor = self._predictor
        if predictor is None or not self._gate.on or not predictor.reads(vector):
            return Forecast(Ruling.SEARCH, None, pools, vector)
        score = self._score(predictor, pools, vector)
        with self._booking:
            ruling = self._gate.rule(score, self._random.random())
            if ruling is Ruling.SKIP:
                self._gate.note_skipped(self.prices)
        metrics.PREDICTIONS.labels(ruling.value).inc()
        return Forecast(ruling, score, pools, vector)

    def note_image(self, noise_s: float) -> None:
        """Changes state: learn what an image of the fleet takes from noise, the price of a missed hit."""
        with self._booking:
            self._image_s = _running_mean(self._image_s, noise_s)

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
        if predictor is None or not predictor.reads(forecast.vector) or not self._studying.acquire(blocking=False):
            return
        try:
            score = self._score(predictor, forecast.pools, forecast.vector)
        finally:
            self._studying.release()
        with self._booking:
            self._gate.note_searched(Ruling.SEARCH, score, saved_share, self.prices)

    def follow(self) -> None:
        """Changes state: learn the new entries of the ledger. Blocks; raises StoreUnavailable. If another thread does
        so already, it learns these entries too: a million entries take half a minute, and no commit waits."""
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

        Raises StoreUnavailable, and any error of a training; searches continue as before.
        """
        if not self._enabled or not self._is_worth_it():
            return
        self._open()
        self.follow()
        self._retrain_if_stale()
        with self._booking:
            if self._image_s or self._always:
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
        known = self._predictor.encoder if self._predictor is not None else None
        if binding is not None and binding != known:
            self._predictor = MatchPredictor(binding)

    def _retrain_if_stale(self) -> None:
        predictor = self._predictor
        if predictor is not None and predictor.is_stale(self._ledger.totals().entry_count):
            # Commits continue meanwhile, and their entries are learnt.
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
