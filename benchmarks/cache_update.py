"""Measure an update of the cache: 10,000 new entries put into the index, and the match predictor trained again.

    python -m benchmarks.cache_update

Entries go from the ledger into the embedded index as in the gateway's background round. The predictor is trained after
5 % of 10,000 entries changed. The same round times a plain SGDOneClassSVM fit of the same rows, which is the paper's
figure. The predictor stores features of each entry at arrival, so that it reads only new entries. NIRVANA (section 5.4)
reports 0.04 s for the classifier and 7.5 s for the index, for 10,000 records.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from sklearn.linear_model import SGDOneClassSVM

from benchmarks.filled_cache import DIMENSION_COUNT, FilledCache, point, vectors, write_rows
from benchmarks.prompt_logs import Vectors
from lab.runs.measure import Figure, at_most, informative, measured, parse_options, publish
from pentimento.stores.ledger.cache.ledger import open_cache_ledger
from pentimento.stores.ledger.cache.records import EncoderBinding, NumberedVector
from pentimento.stores.vectors.edge import EdgeVectorIndex
from pentimento.stores.vectors.index_building import NO_BUILD
from services.vectordb_gateway.lookup.encoder import EncoderGuard
from services.vectordb_gateway.match_predictor.predictor import MatchPredictor
from services.vectordb_gateway.match_predictor.support import TRAINING_COUNT
from services.vectordb_gateway.upkeep.indexing import Indexing


def main() -> int:
    options = parse_options("cache_update", __doc__)
    rounds = 3 if options.quick else 21
    figures = insert_figures(3 if options.quick else 9) + retraining_figures(rounds)
    return publish(options, figures, notes={"entries": ENTRY_COUNT, "rounds": rounds})


INSERT_COUNT = 10_000
_CLUSTERS_COUNT = 5_000


@dataclass(frozen=True)
class Insertion:
    """Store elapsed seconds and processor seconds."""

    took_s: float
    processor_s: float


def insert_figures(rounds: int) -> list[Figure]:
    """Return seconds for 10,000 entries that are durable and found afterwards; earlier entries stay in the index."""
    alone: list[Insertion] = []
    from_ledger: list[Insertion] = []
    with tempfile.TemporaryDirectory(prefix="pentimento-") as folder:
        for number in range(rounds):
            alone.append(inserted_alone(Path(folder) / "alone", number))
            from_ledger.append(inserted_from_ledger(Path(folder) / "ledger", number))
    ledger_s, alone_s = [one.took_s for one in from_ledger], [one.took_s for one in alone]
    processor_s = [one.processor_s for one in from_ledger]
    middle = statistics.median
    return [
        measured("from the ledger into the index, 10,000 entries", ledger_s, middle, at_most(1.0, "s")),
        measured("the same, processor time", processor_s, middle, informative("s")),
        measured("into the index alone, 10,000 entries", alone_s, middle, informative("s")),
    ]


def timed(index: EdgeVectorIndex, work: Callable[[], None]) -> Insertion:
    before_s, began = processor_s_of(index), time.perf_counter()
    work()
    return Insertion(round(time.perf_counter() - began, 4), round(processor_s_of(index) - before_s, 4))


def processor_s_of(index: EdgeVectorIndex) -> float:
    """Return processor seconds of this process and the index's."""
    if index.process is None or index.process.pid is None:
        raise RuntimeError("the index does not run")
    times = psutil.Process(index.process.pid).cpu_times()
    return time.process_time() + times.user + times.system


def inserted_alone(directory: Path, number: int) -> Insertion:
    index = EdgeVectorIndex(directory, building=NO_BUILD)
    index.prepare(DIMENSION_COUNT)
    first = number * INSERT_COUNT
    points = [point(first + at, each) for at, each in enumerate(vectors(INSERT_COUNT, _CLUSTERS_COUNT, number))]
    took = timed(index, lambda: index.upsert(points))
    index.close()
    return took


def inserted_from_ledger(directory: Path, number: int) -> Insertion:
    """Read, insert and mark in batches, as in the gateway's background round."""
    directory.mkdir(parents=True, exist_ok=True)
    cache = FilledCache(directory, 0)
    ledger = open_cache_ledger(cache.ledger_url)
    made = vectors(INSERT_COUNT, _CLUSTERS_COUNT, number)
    write_rows(cache.ledger_url, number * INSERT_COUNT, made, indexed=False)
    index = EdgeVectorIndex(cache.index, building=NO_BUILD)
    guard = EncoderGuard(ledger, index)
    guard.open()
    indexing = Indexing(ledger, index, guard)
    took = timed(index, indexing.index_new)
    if index.counts.points_count != (number + 1) * INSERT_COUNT:
        raise RuntimeError(f"the index holds {index.counts.points_count} points")
    indexing.close()
    index.close()
    ledger.close()
    return took


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


if __name__ == "__main__":
    raise SystemExit(main())
