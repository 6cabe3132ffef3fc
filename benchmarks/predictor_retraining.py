"""Time training of the match predictor against a plain SGDOneClassSVM fit of the same rows: a part of `cache_update`.

The predictor's SVM is trained on a sample of the rows, so that a plain fit of a sample of that size is timed too.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from sklearn.linear_model import SGDOneClassSVM

from benchmarks.prompt_logs import Vectors
from benchmarks.report import Figure, at_most, informative, measured
from pentimento.stores.ledger.cache_records import EncoderBinding, NumberedVector
from services.vectordb_gateway.match_predictor.predictor import MatchPredictor
from services.vectordb_gateway.match_predictor.support import TRAINING_COUNT

ENTRY_COUNT = 10_000
# 5 % of the entries left and as many arrived: the gateway's rule for training again
CHANGED_COUNT = 500
_SIZE, _THEME_COUNT, _SPREAD = 384, 2000, 0.8
_POOL = "tenant"


@dataclass(frozen=True)
class RetrainingRound:
    """Store the seconds of one round's sides.

    The sides, in sequence: new entries learnt and the predictor trained; all entries learnt and it trained; a plain fit
    of all rows; a plain fit of the number of rows that the predictor trains on.
    """

    changed_s: float
    anew_s: float
    plain_s: float
    plain_sample_s: float


def retraining_figures(rounds: int) -> list[Figure]:
    """Return the figures of 10,000 synthetic entries of 384 dimensions: prompts around 2,000 themes."""
    rows = _themed_rows(ENTRY_COUNT + CHANGED_COUNT, seed=0)
    samples = [_round(rows, number) for number in range(-1, rounds)][1:]  # the first one loads scikit-learn
    pairs = [(each.changed_s, each.plain_s) for each in samples]
    anew = [(each.anew_s, each.plain_s) for each in samples]
    like_for_like = [(each.changed_s, each.plain_sample_s) for each in samples]
    of_sample = f"a plain fit of {TRAINING_COUNT:,} of them, as many as it trains on"
    return [
        measured("predictor retraining ÷ a plain fit of the same rows", pairs, _median_ratio, at_most(1.2)),
        measured(f"predictor retraining ÷ {of_sample}", like_for_like, _median_ratio, informative()),
        measured("predictor retraining per 10k (paper: 0.04 s)", [one for one, _ in pairs], median, at_most(0.04, "s")),
        measured("plain SGDOneClassSVM fit per 10k", [plain for _, plain in pairs], median, informative("s")),
        measured("all entries learnt and trained ÷ a plain fit", anew, _median_ratio, informative()),
        measured("all entries learnt and trained per 10k", [one for one, _ in anew], median, informative("s")),
    ]


def _round(rows: Vectors, seed: int) -> RetrainingRound:
    entries = [NumberedVector(number + 1, _POOL, row.tobytes()) for number, row in enumerate(rows)]
    began_s = time.perf_counter()
    predictor = MatchPredictor(EncoderBinding("benchmark", _SIZE))
    predictor.add(entries[:ENTRY_COUNT])
    predictor.retrain(np.arange(1, ENTRY_COUNT + 1))
    anew_s = time.perf_counter() - began_s

    began_s = time.perf_counter()
    predictor.add(entries[ENTRY_COUNT:])
    predictor.retrain(np.arange(CHANGED_COUNT + 1, len(rows) + 1))
    changed_s = time.perf_counter() - began_s

    held = rows[CHANGED_COUNT:]
    sample = held[np.random.default_rng(max(seed, 0)).choice(len(held), TRAINING_COUNT, replace=False)]
    return RetrainingRound(changed_s, anew_s, _plain_fit_s(held, seed), _plain_fit_s(sample, seed))


def _plain_fit_s(rows: Vectors, seed: int) -> float:
    began_s = time.perf_counter()
    SGDOneClassSVM(nu=0.001, random_state=max(seed, 0)).fit(rows)
    return time.perf_counter() - began_s


def _themed_rows(count: int, seed: int) -> Vectors:
    generator = np.random.default_rng(seed)
    themes = generator.normal(size=(_THEME_COUNT, _SIZE)) / np.sqrt(_SIZE)
    chosen = themes[generator.integers(_THEME_COUNT, size=count)]
    rows = chosen + _SPREAD * generator.normal(size=chosen.shape) / np.sqrt(_SIZE)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def _median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return median(ours for ours, _ in pairs) / median(plain for _, plain in pairs)
