"""Measure the net latency gained by predicting a match before a search, on windows of prompt logs later than all
training data.

    python -m benchmarks.match_predictor --data DIR [--kept DIR]

Each log is played once, prompt by prompt, as a cache would serve it under NIRVANA's thresholds. Every scorer follows it
by the same rules (trained again when 5 % of the entries changed) behind the same gate, which learns only from its
searches and audits. Net latency uses the truth, not the gate's estimate: the log says what every skipped search would
have found. A window is held out: all training data is older.

Two sets of prompts without an order of time complete the logs: one chosen for diversity, one composed of parts. They
have base rates that the logs do not.

Prices: an image takes 10 s (the paper's), a search the embedded index's time here, plus 0, 5 or 100 ms of distance.
Precision and recall are at a threshold chosen on the 2,000 lookups before the window for a recall of 0.96. DIR holds
`prompts/` (docs/benchmarks.md lists the files); vectors that had to be embedded are stored in --kept.
"""

import argparse
import asyncio
import itertools
import math
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median
from tempfile import TemporaryDirectory

from benchmarks.match_scorers import (
    LogScorer,
    LogScores,
    Ours,
    Refitted,
    SearchedLog,
    nearest_centroid,
    one_centroid,
    plain_svm,
    score_all,
    search_all,
)
from benchmarks.prompt_logs import COMPOSED, DIFFUSIONDB, DIVERSE, Vectors, read_vectors
from lab.runs.measure import (
    Figure,
    Options,
    at_least,
    at_most,
    informative,
    measured,
    parse_options,
    publish,
    surely_above,
)
from pentimento.policies.match_prediction import (
    LookupPrices,
    MatchGate,
    Ruling,
    SearchOutcome,
    threshold_for_recall,
)
from pentimento.stores.vectors import Space, VectorIndex, VectorPoint, VectorQuery, open_vectors

GENERATION_S = 10.0
DISTANCES_MS = (0.0, 5.0, 100.0)
WINDOW = 250
SET_LIMIT = 2500
# Precision and recall use shorter windows, since base rates of 0.9 come and go.
SHORT_WINDOW, HISTORY, WARM_UP = 100, 2000, 1000
ASKED_RECALL, HIGH_BASE_RATE = 0.96, 0.9
_REVIEW_EVERY = 64
OURS = "ours"
COMPARATORS: dict[str, Callable[[int], LogScorer]] = {
    "nearest of 64 centroids": lambda size: Refitted(nearest_centroid),
    "mean of all entries": lambda size: Refitted(one_centroid),
}
# on the first log only: it is never near the others, and slow
SVM_ALONE = "SVM on a Nystroem map alone"


@dataclass(frozen=True)
class WindowGain:
    """Store the gate's gain in a window, in ms a lookup, and the share of it with the gate on."""

    net_ms: float
    on_share: float
    skipped_share: float


@dataclass(frozen=True)
class PlayedLog:
    """Hold a log with the scores of all scorers."""

    log: SearchedLog
    scores: dict[str, LogScores]
    bytes_an_entry: float

    def outcomes(self, scorer: str) -> list[SearchOutcome]:
        return [SearchOutcome(*each) for each in zip(self.scores[scorer].scores, self.log.shares, strict=True)]


def play(log: SearchedLog, with_svm_alone: bool) -> PlayedLog:
    size = log.vectors.shape[1]
    ours = Ours(size)
    scores = {OURS: score_all(ours, log)}
    scores |= {name: score_all(make(size), log) for name, make in COMPARATORS.items()}
    if with_svm_alone:
        scores[SVM_ALONE] = score_all(Refitted(plain_svm), log)
    predictor = ours.predictor
    return PlayedLog(log, scores, (predictor.entry_size_bytes + predictor.fixed_size_bytes) / predictor.entry_count)


def gains(outcomes: Sequence[SearchOutcome], prices: LookupPrices) -> list[WindowGain]:
    """Let a gate decide on a log, window by window."""
    gate, random = MatchGate(), Random(0)
    windows = []
    for first in range(0, len(outcomes) - WINDOW + 1, WINDOW):
        lookups = [
            _rule(gate, each, prices, random, first + number)
            for number, each in enumerate(outcomes[first : first + WINDOW])
        ]
        net_s, on, skipped = (fmean(column) for column in zip(*lookups, strict=True))
        windows.append(WindowGain(1000 * net_s, on, skipped))
    return windows


def _rule(
    gate: MatchGate, truth: SearchOutcome, prices: LookupPrices, random: Random, number: int
) -> tuple[float, bool, bool]:
    """Return for one lookup the seconds gained, whether the gate was on, and whether it skipped the search."""
    on, ruling = gate.on, gate.rule(truth.score, random.random())
    gained_s = -prices.prediction_s if on else 0.0
    if ruling is Ruling.SKIP:
        gained_s += prices.search_s - truth.saved_share * prices.generation_s
        gate.note_skipped(prices)
    else:
        gate.note_searched(ruling, truth.score, truth.saved_share, prices)
    if number % _REVIEW_EVERY == _REVIEW_EVERY - 1:
        gate.review(prices)
    return gained_s, on, ruling is Ruling.SKIP


@dataclass(frozen=True)
class PredictedWindow:
    """Hold a short window, at the threshold from the lookups before it."""

    base_rate: float
    outcomes: list[SearchOutcome]
    threshold: float

    @property
    def point(self) -> list[float]:
        """Return base rate, precision and recall."""
        return [self.base_rate, *precision_and_recall(self.outcomes, self.threshold)]


def precision_and_recall(outcomes: Sequence[SearchOutcome], threshold: float) -> tuple[float, float]:
    """Return the share of hits among the lookups at or above the threshold, and the share of all hits there."""
    likely = [each for each in outcomes if each.score >= threshold]
    found = math.fsum(each.weight for each in likely if each.saved_share > 0)
    hits = math.fsum(each.weight for each in outcomes if each.saved_share > 0)
    predicted = math.fsum(each.weight for each in likely)
    return (found / predicted if predicted else 1.0), (found / hits if hits else 1.0)


def predicted_windows(outcomes: Sequence[SearchOutcome]) -> list[PredictedWindow]:
    windows = []
    for first in range(WARM_UP, len(outcomes) - SHORT_WINDOW + 1, SHORT_WINDOW):
        now = list(outcomes[first : first + SHORT_WINDOW])
        threshold = threshold_for_recall(outcomes[max(0, first - HISTORY) : first], ASKED_RECALL)
        windows.append(PredictedWindow(fmean(each.saved_share > 0 for each in now), now, threshold))
    return windows


def local_search_s(vectors: Vectors, count: int) -> float:
    """Return median seconds of a search of the embedded index that holds the log."""
    with TemporaryDirectory() as directory:
        index = open_vectors(f"edge://{directory}/index")
        try:
            index.prepare(vectors.shape[1])
            index.upsert(
                [VectorPoint(str(uuid.UUID(int=n)), "t", ("k",), 0.0, row.tobytes()) for n, row in enumerate(vectors)]
            )
            return median(asyncio.run(_search_s(index, vectors[:count])))
        finally:
            index.close()


async def _search_s(index: VectorIndex, rows: Vectors) -> list[float]:
    took_s = []
    for row in rows:
        query = VectorQuery(Space.TEXT, row.tobytes(), ("t",), ("k",), 4)
        began_s = time.perf_counter()
        await index.search(query, 1.0)
        took_s.append(time.perf_counter() - began_s)
    return took_s


def read_logs(options: Options) -> list[SearchedLog]:
    data, kept = options.rest["data"], options.rest["kept"]
    limit = 1500 if options.quick else 4000
    diffusiondb = read_vectors(DIFFUSIONDB, data, limit)
    logs = [search_all(DIFFUSIONDB, diffusiondb, misses_alone=alone) for alone in (False, True)]
    for file in () if options.quick else (COMPOSED, DIVERSE):
        vectors = read_vectors(file, data, limit, kept)
        logs.append(search_all(file, vectors[:SET_LIMIT], misses_alone=False))
    return logs


def gain_figures(played: Sequence[PlayedLog], search_s: float) -> list[Figure]:
    figures: list[Figure] = []
    on_windows: list[list[float]] = []
    worst: dict[bool, list[float]] = {True: [], False: []}
    for one, distance_ms in itertools.product(played, DISTANCES_MS):
        ours = gains(one.outcomes(OURS), _prices(one, OURS, search_s, distance_ms))
        best = _best_of_others(one, search_s, distance_ms)
        worst[one.log.in_order] += [each.net_ms for each in ours]
        on_windows += [[mine.net_ms, other] for mine, other in zip(ours, best, strict=True) if mine.on_share > 0]
        name = f"{one.log.name}, {distance_ms:g} ms away"
        samples = [[each.net_ms, each.on_share, each.skipped_share] for each in ours]
        figures.append(measured(f"{name}: net", samples, _mean_first, at_least(0.0, "ms a lookup")))
        figures.append(measured(f"{name}: lookups under the predictor", samples, _mean_second, informative()))
    figures.insert(0, measured("worst window of the logs", worst[True], min, at_least(0.0, "ms a lookup")))
    if worst[False]:
        figures.append(measured("worst window of the sets", worst[False], min, informative("ms a lookup")))
    more = surely_above(0.0, "ms a lookup")
    figures.append(measured("ours - the best of the others, where on", on_windows, _mean_gap, more))
    return figures


def _prices(one: PlayedLog, scorer: str, search_s: float, distance_ms: float) -> LookupPrices:
    return LookupPrices(search_s + distance_ms / 1000, GENERATION_S, one.scores[scorer].score_s)


def _best_of_others(one: PlayedLog, search_s: float, distance_ms: float) -> list[float]:
    """Return each window's gain of the better of always searching (0 by definition) and the better centroid
    scorer."""
    others = [gains(one.outcomes(name), _prices(one, name, search_s, distance_ms)) for name in COMPARATORS]
    return [max(0.0, *(each.net_ms for each in window)) for window in zip(*others, strict=True)]


def curve_figures(played: Sequence[PlayedLog]) -> list[Figure]:
    figures: list[Figure] = []
    for one in played:
        windows = [[window.base_rate] for window in predicted_windows(one.outcomes(OURS))]
        figures.append(measured(f"{one.log.name}: base rate", windows, _mean_first, informative()))
        for scorer in one.scores:
            points = [window.point for window in predicted_windows(one.outcomes(scorer))]
            figures.append(measured(f"{one.log.name}: {scorer}: precision", points, _mean_second, informative()))
            figures.append(measured(f"{one.log.name}: {scorer}: recall", points, _mean_third, informative()))
    high = [
        window.point
        for one in played
        for window in predicted_windows(one.outcomes(OURS))
        if window.base_rate >= HIGH_BASE_RATE
    ]
    if high:
        figures.append(measured("windows of base rate >= 0.9: precision", high, _mean_second, at_least(0.96)))
        figures.append(measured("windows of base rate >= 0.9: recall", high, _mean_third, at_least(0.95)))
        figures.append(measured("windows of base rate >= 0.9: base rate", high, _mean_first, informative()))
    return figures


def _mean_first(rows: Sequence[Sequence[float]]) -> float:
    return fmean(row[0] for row in rows)


def _mean_second(rows: Sequence[Sequence[float]]) -> float:
    return fmean(row[1] for row in rows)


def _mean_third(rows: Sequence[Sequence[float]]) -> float:
    return fmean(row[2] for row in rows)


def _mean_gap(rows: Sequence[Sequence[float]]) -> float:
    return fmean(mine - other for mine, other in rows)


def main() -> int:
    options = parse_options("match_predictor", __doc__, _own_options)
    logs = read_logs(options)
    search_s = local_search_s(logs[0].vectors, 200)
    played = [play(log, with_svm_alone=number == 0) for number, log in enumerate(logs)]
    figures = gain_figures(played, search_s) + curve_figures(played)
    memory = [one.bytes_an_entry for one in played]
    figures.append(measured("memory, the most of any log", memory, max, at_most(64.0, "bytes an entry")))
    notes = {"local_search_ms": 1000 * search_s, "generation_s": GENERATION_S}
    return publish(options, figures, notes=notes)


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="directory with prompts/")
    parser.add_argument("--kept", type=Path, help="directory that keeps embedded vectors between runs")


if __name__ == "__main__":
    raise SystemExit(main())
