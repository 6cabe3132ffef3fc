"""Run the predictor on lookups: a real ledger, a real SVM, and scripted durations of searches."""

import itertools
import shutil
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from random import Random

import numpy as np
import pytest

from pentimento.domain.generation import CapturedEntries, CapturedLatent
from pentimento.policies.match_prediction import Ruling
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from pentimento.stores.ledger.cache.records import EncoderBinding, EntryCommit, GrantedKey, GrantRecord, NumberedVector
from pentimento.stores.objects.store import refer_to
from services.vectordb_gateway.match_predictor import match_watch
from services.vectordb_gateway.match_predictor import predictor as predictor_module
from services.vectordb_gateway.match_predictor.match_watch import MatchWatch
from services.vectordb_gateway.match_predictor.sign_codes import Codes
from services.vectordb_gateway.match_predictor.support import Support
from services.vectordb_gateway.settings import MatchPredictorChoice
from tests.contract.stores.cache_records import bind

pytest.importorskip("sklearn")

SIZE = 96
FAR_S, LOCAL_S = 0.1, 0.0005
ENCODER = EncoderBinding("sha256:encoder", SIZE)


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def rows(count: int, seed: int) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(count, SIZE)))


ENTRIES = rows(300, seed=0)
STRANGE = rows(400, seed=1)
NEAR = unit(ENTRIES + 0.5 * rows(300, seed=2))


def commit(ledger: CacheLedger, vector: np.ndarray, pool: str = "tenant") -> "Future[str]":
    name = uuid.uuid4().hex
    ledger.reserve(GrantRecord(name, pool, "tenant", "scope", "r1", 7, 1e12, (GrantedKey(f"{name}/5", 5),)))
    captured = CapturedEntries(name, (CapturedLatent(5, 0.25, refer_to(f"{name}/5", b"latent"), True),), None)
    keys = {5: "key"}
    return ledger.commit(
        EntryCommit(
            str(uuid.uuid4()),
            captured,
            "tenant",
            pool,
            "scope",
            keys,
            "r1",
            7,
            text_vector=vector.tobytes(),
            image_vector=None,
            ancestor_depth=0,
            created_at=1,
            step_count=50,
        )
    )


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the file of a ledger with all entries, which every test copies."""
    path = tmp_path_factory.mktemp("filled") / "ledger.sqlite"
    opened = open_cache_ledger(f"sqlite:///{path}")
    bind(opened, ENCODER)
    for future in [commit(opened, row) for row in ENTRIES]:
        future.result()
    opened.close()
    assert [left.name for left in path.parent.iterdir()] == [path.name]
    return path


@pytest.fixture
def ledger(filled: Path, tmp_path: Path) -> Iterator[CacheLedger]:
    shutil.copy(filled, tmp_path / "ledger.sqlite")
    opened = open_cache_ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def steady_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each prediction take 50 µs by the watch's clock, as on an idle machine."""
    fifties_of_us = itertools.count()
    monkeypatch.setattr(match_watch, "perf_counter", lambda: next(fifties_of_us) * 5e-5)


def ask(watch: MatchWatch, vector: np.ndarray, search_s: float = FAR_S, saved_share: float = 0.0) -> Ruling:
    """Look up as the gateway does."""
    forecast = watch.forecast(("tenant",), vector.tobytes())
    if forecast.ruling is not Ruling.SKIP:
        watch.note_search(forecast, search_s, saved_share)
        if watch.wants_to_study(forecast):
            watch.study(forecast, saved_share)
    return forecast.ruling


def opened(ledger: CacheLedger, choice: MatchPredictorChoice = MatchPredictorChoice.AUTO) -> MatchWatch:
    """Return a watch of a fleet with images of one second."""
    watch = MatchWatch(ledger, choice, Random(0))
    watch.note_image(1.0)
    return watch


def learnt(
    ledger: CacheLedger, choice: MatchPredictorChoice = MatchPredictorChoice.AUTO, search_s: float = FAR_S
) -> MatchWatch:
    """Return a watch after 64 lookups, a training, 600 lookups with half of hits, and a review."""
    watch = opened(ledger, choice)
    rulings(watch, STRANGE[:64], search_s)
    watch.maintain()
    for number in range(300):
        ask(watch, NEAR[number], search_s, saved_share=0.2)
        ask(watch, STRANGE[number], search_s)
    watch.maintain()
    return watch


def rulings(watch: MatchWatch, vectors: np.ndarray, search_s: float = FAR_S, saved_share: float = 0.0) -> list[Ruling]:
    return [ask(watch, vector, search_s, saved_share) for vector in vectors]


def test_far_searches_skip_sure_misses_except_audits(ledger: CacheLedger) -> None:
    watch = learnt(ledger)

    strange, near = rulings(watch, STRANGE[300:]), rulings(watch, NEAR[:100], saved_share=0.2)

    assert strange.count(Ruling.SKIP) >= 75
    assert 1 <= strange.count(Ruling.AUDIT) <= 20
    assert near == [Ruling.SEARCH] * 100


def test_where_searches_are_quick_nothing_is_trained(ledger: CacheLedger) -> None:
    watch = learnt(ledger, search_s=LOCAL_S)

    assert rulings(watch, STRANGE[300:], LOCAL_S) == [Ruling.SEARCH] * 100
    assert not watch.wants_to_study(watch.forecast(("tenant",), STRANGE[0].tobytes()))


@pytest.mark.parametrize(("slow_count", "quick_count"), [(63, 0), (60, 4)], ids=["first ones", "busy processor"])
def test_few_slow_searches_are_not_taken_for_slow_ones(
    ledger: CacheLedger, monkeypatch: pytest.MonkeyPatch, slow_count: int, quick_count: int
) -> None:
    monkeypatch.setattr(predictor_module, "fit_support", lambda codes: pytest.fail("it was trained"))
    watch = opened(ledger)

    rulings(watch, STRANGE[:slow_count], FAR_S)
    rulings(watch, STRANGE[slow_count : slow_count + quick_count], LOCAL_S)

    watch.maintain()


def test_predictions_take_a_tenth_of_searches_while_off(ledger: CacheLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(match_watch, "perf_counter", lambda: float(next(seconds)))
    watch = learnt(ledger)  # a prediction takes a second by this clock, a search `FAR_S`
    asked = [watch.wants_to_study(watch.forecast(("tenant",), STRANGE[0].tobytes())) for _ in range(10_000)]

    assert watch.prices.prediction_s == pytest.approx(1.0)
    assert sum(asked) == pytest.approx(10_000 * 0.1 * FAR_S, rel=0.3)


def test_off_is_off(ledger: CacheLedger) -> None:
    watch = learnt(ledger, MatchPredictorChoice.OFF)

    assert rulings(watch, STRANGE[300:]) == [Ruling.SEARCH] * 100


def test_always_skips_however_quick_searches_are(ledger: CacheLedger) -> None:
    watch = learnt(ledger, MatchPredictorChoice.ALWAYS, LOCAL_S)

    assert rulings(watch, STRANGE[300:], LOCAL_S).count(Ruling.SKIP) >= 75


def test_audits_that_hit_switch_it_off(ledger: CacheLedger) -> None:
    watch = learnt(ledger)

    for _ in range(10):
        rulings(watch, STRANGE[300:], saved_share=0.5)
    watch.maintain()

    assert rulings(watch, STRANGE[300:]) == [Ruling.SEARCH] * 100


def test_an_entry_that_came_is_searched_for_at_once(ledger: CacheLedger) -> None:
    watch = learnt(ledger)
    before = ask(watch, STRANGE[390])
    commit(ledger, STRANGE[390]).result()

    watch.follow()

    assert before is not Ruling.SEARCH
    assert ask(watch, STRANGE[390], saved_share=0.5) is Ruling.SEARCH


def test_commit_leaves_its_entry_to_a_running_follow(ledger: CacheLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = learnt(ledger)
    read, go_on = threading.Event(), threading.Event()
    vectors_after = ledger.vectors_after

    def slow(after: int, limit_count: int) -> list[NumberedVector]:
        found = vectors_after(after, limit_count)
        read.set()
        go_on.wait(120.0)
        return found

    monkeypatch.setattr(ledger, "vectors_after", slow)
    other, own = (threading.Thread(target=watch.follow, daemon=True) for _ in range(2))
    other.start()
    read.wait(120.0)
    commit(ledger, STRANGE[390]).result()
    own.start()
    own.join(60.0)
    waited = own.is_alive()
    go_on.set()
    other.join(120.0)

    assert not waited
    assert ask(watch, STRANGE[390], saved_share=0.5) is Ruling.SEARCH


def test_retrains_when_a_twentieth_changed_and_not_before(ledger: CacheLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings: list[int] = []
    fit = predictor_module.fit_support
    monkeypatch.setattr(predictor_module, "fit_support", lambda codes: trainings.append(len(codes)) or fit(codes))
    watch = learnt(ledger)

    for row in STRANGE[:15]:
        commit(ledger, row).result()
    watch.maintain()
    commit(ledger, STRANGE[15]).result()
    watch.maintain()

    assert trainings == [300, 316]


def test_commit_does_not_wait_for_training(ledger: CacheLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = learnt(ledger)
    for row in STRANGE[:16]:
        commit(ledger, row).result()
    fit, trains, go_on = predictor_module.fit_support, threading.Event(), threading.Event()

    def slow(codes: Codes) -> Support:
        trains.set()
        go_on.wait(120.0)
        return fit(codes)

    monkeypatch.setattr(predictor_module, "fit_support", slow)
    training = threading.Thread(target=watch.maintain, daemon=True)
    training.start()
    trains.wait(120.0)
    commit(ledger, STRANGE[390]).result()
    committed = threading.Thread(target=watch.follow, daemon=True)
    committed.start()
    committed.join(60.0)
    waited = committed.is_alive()
    go_on.set()
    training.join(120.0)

    assert not waited
    assert ask(watch, STRANGE[390], saved_share=0.5) is Ruling.SEARCH


def test_entry_added_during_a_training_is_kept(ledger: CacheLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = learnt(ledger)
    for row in STRANGE[:16]:
        commit(ledger, row).result()
    read = ledger.live_sequences

    def read_and_commit() -> list[int]:
        found = read()
        commit(ledger, STRANGE[390]).result()
        watch.follow()
        return found

    monkeypatch.setattr(ledger, "live_sequences", read_and_commit)
    watch.maintain()

    assert ask(watch, STRANGE[390], saved_share=0.5) is Ruling.SEARCH


def test_a_training_that_fails_leaves_lookups_as_they_were(
    ledger: CacheLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(codes: object) -> None:
        raise MemoryError

    monkeypatch.setattr(predictor_module, "fit_support", fail)
    watch = opened(ledger)
    rulings(watch, STRANGE[:64])

    with pytest.raises(MemoryError):
        watch.maintain()

    assert rulings(watch, STRANGE[:50]) == [Ruling.SEARCH] * 50
