"""Provide the match predictor and its rivals behind one interface, and one pass of each over a log."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from sklearn.cluster import MiniBatchKMeans
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import SGDOneClassSVM

from benchmarks.prompt_logs import PromptFile, Vectors
from pentimento.policies.cache_selection import NIRVANA_LATENT_THRESHOLDS
from pentimento.stores.ledger.cache.records import EncoderBinding, NumberedVector
from services.vectordb_gateway.match_predictor.predictor import RETRAINING_SHARE, MatchPredictor

POOL = "log"
_NEEDED_COUNT = 256
_CENTROID_COUNT = 64
# A One-Class SVM as the paper describes it: landmarks drawn from the entries and an RBF kernel.
_LANDMARK_COUNT, _GAMMA = 128, 5.0


class LogScorer(Protocol):
    """Score prompts along a log: `learn` adds an entry, `refresh` may train again."""

    def score(self, vector: Vectors) -> float: ...

    def learn(self, vector: Vectors) -> None: ...

    def refresh(self) -> None: ...


class Ours:
    """Use the gateway's predictor, on one pool."""

    def __init__(self, size: int) -> None:
        self.predictor = MatchPredictor(EncoderBinding("benchmark", size))
        self._count = 0

    def score(self, vector: Vectors) -> float:
        return self.predictor.score_in([POOL], vector.tobytes())

    def learn(self, vector: Vectors) -> None:
        self._count += 1
        self.predictor.add([NumberedVector(self._count, POOL, vector.tobytes())])

    def refresh(self) -> None:
        if self.predictor.is_stale(self._count):
            self.predictor.retrain(np.arange(1, self._count + 1))


@dataclass
class Refitted:
    """Fit from all entries again when more than 5 % changed; newer ones have no influence until then."""

    fit: Callable[[Vectors], Callable[[Vectors], float]]
    entries: list[Vectors] = field(default_factory=list)
    fitted_count: int = 0
    scores: Callable[[Vectors], float] | None = None

    def score(self, vector: Vectors) -> float:
        return math.inf if self.scores is None else self.scores(vector)

    def learn(self, vector: Vectors) -> None:
        self.entries.append(vector)

    def refresh(self) -> None:
        count = len(self.entries)
        if count >= _NEEDED_COUNT and count - self.fitted_count > RETRAINING_SHARE * self.fitted_count:
            self.scores, self.fitted_count = self.fit(np.stack(self.entries)), count


def one_centroid(entries: Vectors) -> Callable[[Vectors], float]:
    """Score by the cosine to the mean of all entries, up to a factor."""
    centre = entries.mean(axis=0)
    return lambda vector: float(centre @ vector)


def nearest_centroid(entries: Vectors) -> Callable[[Vectors], float]:
    """Score by the cosine to the nearest of 64 centroids (k-means)."""
    means = MiniBatchKMeans(_CENTROID_COUNT, random_state=0, n_init=1, max_iter=5).fit(entries).cluster_centers_
    centres = np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True), np.float32)
    return lambda vector: float((centres @ vector).max())


def plain_svm(entries: Vectors) -> Callable[[Vectors], float]:
    """Score by SGDOneClassSVM on sklearn's Nystroem map."""
    kernel = Nystroem(gamma=_GAMMA, n_components=_LANDMARK_COUNT, random_state=0).fit(entries)
    machine = SGDOneClassSVM(nu=0.001, random_state=0).fit(kernel.transform(entries))
    return lambda vector: float(machine.decision_function(kernel.transform(vector[None]))[0])


def saved_share(similarity: float) -> float:
    """Return K/N by NIRVANA's thresholds; 0 is a miss."""
    return max((rule.saved_share for rule in NIRVANA_LATENT_THRESHOLDS if similarity >= rule.min_similarity), default=0)


@dataclass(frozen=True)
class SearchedLog:
    """Hold a log as a cache would have served it: the K/N that a search gives each prompt, and which prompts become
    entries."""

    name: str
    in_order: bool
    vectors: Vectors
    shares: list[float]
    kept: list[bool]


def search_all(file: PromptFile, vectors: Vectors, *, misses_alone: bool) -> SearchedLog:
    """Search for each prompt among the entries before it: all earlier prompts, or only misses."""
    similarities = vectors @ vectors.T
    entries: list[int] = []
    shares, kept = [], []
    for number in range(len(vectors)):
        nearest = float(similarities[number, entries].max()) if entries else -1.0
        shares.append(saved_share(nearest))
        kept.append(not (misses_alone and shares[-1]))
        if kept[-1]:
            entries.append(number)
    name = f"{file.name}, {'misses' if misses_alone else 'all'} kept"
    return SearchedLog(name, file.in_order, vectors, shares, kept)


@dataclass(frozen=True)
class LogScores:
    """Hold a scorer's scores along a log, and the median seconds of one score after training."""

    scores: list[float]
    score_s: float


def score_all(scorer: LogScorer, log: SearchedLog) -> LogScores:
    """Score each prompt before it may become an entry."""
    scores, seconds = [], [0.0]
    for vector, is_entry in zip(log.vectors, log.kept, strict=True):
        began_s = time.perf_counter()
        scores.append(scorer.score(vector))
        if math.isfinite(scores[-1]):
            seconds.append(time.perf_counter() - began_s)
        if is_entry:
            scorer.learn(vector)
            scorer.refresh()
    return LogScores(scores, float(np.median(seconds)))
