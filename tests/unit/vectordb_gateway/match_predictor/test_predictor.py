"""The predictor on entries around a few themes: real codes, real SVM."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from pentimento.stores.ledger.cache.records import EncoderBinding, NumberedVector
from services.vectordb_gateway.match_predictor import predictor as predictor_module
from services.vectordb_gateway.match_predictor.predictor import MatchPredictor

pytest.importorskip("sklearn")

SIZE = 128
ENCODER = EncoderBinding("sha256:encoder", SIZE)


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def rows_near(themes: np.ndarray, count: int, spread: float, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    chosen = themes[generator.integers(len(themes), size=count)]
    return unit(chosen + spread * unit(generator.normal(size=chosen.shape)))


THEMES = unit(np.random.default_rng(0).normal(size=(40, SIZE)))
STRANGE = unit(np.random.default_rng(99).normal(size=(200, SIZE)))


def entries_of(rows: np.ndarray, pool: str = "a", first: int = 1) -> list[NumberedVector]:
    return [NumberedVector(first + number, pool, row.tobytes()) for number, row in enumerate(rows)]


def trained(count: int = 600) -> MatchPredictor:
    predictor = MatchPredictor(ENCODER)
    predictor.add(entries_of(rows_near(THEMES, count, 0.5, seed=1)))
    predictor.retrain(np.arange(count + 1))
    return predictor


def scores(predictor: MatchPredictor, rows: np.ndarray, pools: Sequence[str] = ("a",)) -> np.ndarray:
    return np.array([predictor.score_in(pools, row.tobytes()) for row in rows])


def test_near_vector_scores_above_a_far_one() -> None:
    predictor = trained()

    near, strange = scores(predictor, rows_near(THEMES, 200, 0.5, seed=2)), scores(predictor, STRANGE)

    assert near.min() > strange.max()


def test_a_new_entry_counts_at_once_without_training() -> None:
    predictor = trained()
    before = scores(predictor, STRANGE[:1])

    predictor.add(entries_of(STRANGE[:1], first=601))

    assert scores(predictor, STRANGE[:1]) > before
    assert scores(predictor, STRANGE[:1]) >= scores(predictor, rows_near(THEMES, 200, 0.5, seed=2)).max()


def test_entries_that_are_known_are_not_added_twice() -> None:
    predictor = trained()

    predictor.add(entries_of(rows_near(THEMES, 600, 0.5, seed=1)))

    assert predictor.entry_count == 600


def test_no_tenant_s_score_tells_of_another_s_entries() -> None:
    predictor = trained()
    predictor.add(entries_of(rows_near(STRANGE[:10], 600, 0.1, seed=3), pool="b", first=601))
    predictor.retrain(np.arange(1201))

    alone = scores(trained(), STRANGE[:10])

    assert scores(predictor, STRANGE[:10]) == pytest.approx(alone)
    assert (scores(predictor, STRANGE[:10], ["a", "b"]) > alone).all()


@pytest.mark.parametrize("pools", [["nobody"], ["a", "nobody"], ["small"], ["untrained"]])
def test_unknown_pool_is_searched(pools: list[str]) -> None:
    predictor = trained()
    predictor.add(entries_of(STRANGE[:10], pool="small", first=601))
    predictor.retrain(np.arange(611))
    predictor.add(entries_of(rows_near(THEMES, 400, 0.5, seed=4), pool="untrained", first=611))

    assert scores(predictor, STRANGE[:1], pools).tolist() == [math.inf]


@pytest.mark.parametrize(("added", "gone", "stale"), [(30, 0, False), (31, 0, True), (0, 30, False), (0, 31, True)])
def test_predictor_is_stale_after_a_twentieth_changed(added: int, gone: int, stale: bool) -> None:
    predictor = trained(600)

    predictor.add(entries_of(STRANGE[:added], first=601))

    assert predictor.is_stale(live_count=600 + added - gone) is stale


def test_retraining_forgets_removed_entries() -> None:
    predictor = trained(600)
    gone = rows_near(THEMES, 600, 0.5, seed=1)[:100]
    before = scores(predictor, gone)

    predictor.retrain(np.arange(101, 601))

    assert (scores(predictor, gone) < before).all()
    assert predictor.entry_count == 500
    assert not predictor.is_stale(500)


def test_a_score_means_the_same_after_retraining() -> None:
    """Calibrations from before stay valid."""
    predictor, queries = trained(600), np.concatenate([rows_near(THEMES, 50, 0.5, seed=2), STRANGE[:50]])
    before = scores(predictor, queries)

    predictor.add(entries_of(rows_near(THEMES, 200, 0.5, seed=6), first=601))
    predictor.retrain(np.arange(801))

    assert abs(scores(predictor, queries) - before).mean() < 0.05
    assert before[:50].mean() - before[50:].mean() > 0.3


def test_failed_training_keeps_the_predictor(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = trained()
    before = scores(predictor, STRANGE[:20])

    def fail(codes: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(predictor_module, "fit_support", fail)
    with pytest.raises(RuntimeError):
        predictor.retrain(np.arange(500))

    assert scores(predictor, STRANGE[:20]).tolist() == before.tolist()


def test_an_entry_takes_at_most_64_bytes() -> None:
    predictor = trained(2000)
    for number in range(50):
        predictor.add(entries_of(STRANGE[:1], first=2001 + number))

    assert predictor.entry_size_bytes / predictor.entry_count <= 64
    assert predictor.fixed_size_bytes < 20_000
