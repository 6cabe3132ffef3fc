"""The model thread: who waits for whom, and what a bad item does to the others."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

import pytest

from pentimento.domain.errors import ResourceExhausted, Unavailable
from services.embedder.batching import EmbeddingBatchLimits, ModelThread

# Longer than any test may take: a test in which somebody waits that long fails by its time limit.
FOREVER_S = 3600.0
SOON_S = 120.0


class Model:
    """Echoes its items; holds every batch until `gate` is open, and remembers what it ran."""

    def __init__(self, limits: EmbeddingBatchLimits) -> None:
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.batches: list[tuple[str, list[Any]]] = []
        self.inside: list[str] = []
        lanes = {"text": lambda items: self._run("text", items), "image": lambda items: self._run("image", items)}
        self.thread = ModelThread(lanes, limits, self._inside)

    def _run(self, kind: str, items: Sequence[Any]) -> Sequence[bytes]:
        self.entered.release()
        self.gate.wait(SOON_S)
        if "poison" in items:
            raise ValueError("poison")
        self.batches.append((kind, list(items)))
        return [str(item).encode() for item in items]

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self.inside.append(threading.current_thread().name)
        yield

    def run(self, *values: Any, kind: str = "text") -> list[bytes]:
        return [future.result(SOON_S) for future in self.thread.submit(kind, values)]


@pytest.fixture
def make() -> Iterator[Any]:
    made: list[Model] = []

    def build(**limits: Any) -> Model:
        made.append(Model(EmbeddingBatchLimits(**limits)))
        return made[-1]

    yield build
    for model in made:
        model.gate.set()
        model.thread.close()


def busy(model: Model) -> None:
    """Occupy the thread with one item until the gate opens."""
    model.thread.submit("text", ["first"])
    assert model.entered.acquire(timeout=SOON_S)


def test_a_lone_request_does_not_wait_for_a_fuller_batch(make):
    model = make(max_wait_s=FOREVER_S)
    model.gate.set()

    assert model.run("a") == [b"a"]
    assert model.run("b") == [b"b"]


def test_the_texts_of_one_call_are_one_batch(make):
    model = make()
    model.gate.set()

    assert model.run("a", "b", "c") == [b"a", b"b", b"c"]
    assert model.batches == [("text", ["a", "b", "c"])]


def test_what_arrives_while_a_batch_runs_is_the_next_batch(make):
    model = make(max_wait_s=FOREVER_S)
    busy(model)

    futures = [model.thread.submit("text", [value])[0] for value in "abc"]
    model.gate.set()

    assert [future.result(SOON_S) for future in futures] == [b"a", b"b", b"c"]
    assert model.batches == [("text", ["first"]), ("text", ["a", "b", "c"])]


def test_a_batch_is_never_larger_than_its_limit(make):
    model = make(max_batch_size=2, max_wait_s=0.0)
    busy(model)

    futures = model.thread.submit("text", list("abcde"))
    model.gate.set()

    assert [future.result(SOON_S) for future in futures] == [b"a", b"b", b"c", b"d", b"e"]
    assert [len(items) for _, items in model.batches] == [1, 2, 2, 1]


def test_a_smaller_batch_waits_for_those_who_were_in_the_last_one(make):
    model = make(max_wait_s=FOREVER_S)
    model.thread.submit("text", ["a", "b"])
    assert model.entered.acquire(timeout=SOON_S)
    early = model.thread.submit("text", ["c"])
    model.gate.set()

    late = model.thread.submit("text", ["d"])

    assert [future.result(SOON_S) for future in early + late] == [b"c", b"d"]
    assert model.batches[-1] == ("text", ["c", "d"])


def test_the_wait_for_a_fuller_batch_ends(make):
    model = make(max_wait_s=0.001)
    model.thread.submit("text", ["a", "b"])
    assert model.entered.acquire(timeout=SOON_S)
    alone = model.thread.submit("text", ["c"])[0]

    model.gate.set()

    assert alone.result(SOON_S) == b"c"


def test_texts_go_before_images(make):
    model = make(aging_limit_s=FOREVER_S)
    busy(model)
    image = model.thread.submit("image", [1])[0]
    text = model.thread.submit("text", ["a"])[0]

    model.gate.set()

    assert (text.result(SOON_S), image.result(SOON_S)) == (b"a", b"1")
    assert [kind for kind, _ in model.batches] == ["text", "text", "image"]


def test_an_image_that_waited_long_goes_before_texts(make):
    model = make(aging_limit_s=0.0)
    busy(model)
    image = model.thread.submit("image", [1])[0]
    text = model.thread.submit("text", ["a"])[0]

    model.gate.set()

    assert (text.result(SOON_S), image.result(SOON_S)) == (b"a", b"1")
    assert [kind for kind, _ in model.batches] == ["text", "image", "text"]


def test_a_bad_item_fails_alone(make):
    model = make()
    model.gate.set()

    good, bad, other = model.thread.submit("text", ["a", "poison", "b"])

    with pytest.raises(ValueError, match="poison"):
        bad.result(SOON_S)
    assert (good.result(SOON_S), other.result(SOON_S)) == (b"a", b"b")
    assert model.run("c") == [b"c"]


def test_a_cancelled_item_is_not_computed(make):
    model = make()
    busy(model)
    cancelled, kept = model.thread.submit("text", ["a", "b"])

    assert cancelled.cancel()
    model.gate.set()

    assert kept.result(SOON_S) == b"b"
    assert model.batches[-1] == ("text", ["b"])
    with pytest.raises(CancelledError):
        cancelled.result(SOON_S)


def test_a_full_queue_refuses_with_a_time_to_come_back(make):
    model = make(queue_limit=2)
    busy(model)
    model.thread.submit("text", ["a", "b"])

    with pytest.raises(ResourceExhausted) as refusal:
        model.thread.submit("text", ["c"])

    assert refusal.value.retry_after_ms
    assert len(model.thread.submit("image", [1, 2])) == 2


def test_closing_finishes_what_waits_and_takes_nothing_more(make):
    model = make()
    busy(model)
    waiting = model.thread.submit("text", ["a"])[0]
    model.gate.set()

    model.thread.close()

    assert waiting.done()
    with pytest.raises(Unavailable):
        model.thread.submit("text", ["b"])


def test_batches_run_inside_the_context_on_the_one_thread(make):
    model = make()
    model.gate.set()
    model.run("a")

    assert model.inside == ["model"]


def test_it_counts_batches_and_items(make):
    model = make()
    model.gate.set()
    model.run("a", "b", "c")
    model.run("d")

    model.thread.close()

    assert (model.thread.batch_count, model.thread.item_count) == (2, 4)
