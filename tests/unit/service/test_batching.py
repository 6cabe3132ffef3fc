"""ModelThread: the order of batches, waits, failures and closing."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

import pytest

from pentimento.domain.errors import ResourceExhausted, Unavailable
from pentimento.domain.reasons import Reason
from pentimento.service.batching import BatchingLimits, ModelThread, TakenWork

# Longer than any test may take: a test that waits that long fails by its time limit.
FOREVER_S = 3600.0
SOON_S = 120.0


class Model:
    """A model that echoes its items; it holds every batch until `gate` is open, and records its batches."""

    def __init__(self, limits: BatchingLimits) -> None:
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.batches: list[tuple[str, list[Any]]] = []
        self.inside: list[str] = []
        self.counted: list[tuple[str, int]] = []
        lanes = {"text": lambda items: self._run("text", items), "image": lambda items: self._run("image", items)}
        self.thread = ModelThread(lanes, limits, self._inside, self._count)

    def _run(self, kind: str, items: Sequence[Any]) -> Sequence[bytes]:
        self.entered.release()
        self.gate.wait(SOON_S)
        if "poison" in items:
            raise ValueError("poison")
        self.batches.append((kind, list(items)))
        return [str(item).encode() for item in items]

    def _count(self, lane: str, waited_s: Sequence[float], seconds: float) -> None:
        self.counted.append((lane, len(waited_s)))

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
        made.append(Model(BatchingLimits(**limits)))
        return made[-1]

    yield build
    for model in made:
        model.gate.set()
        model.thread.close()


def busy(model: Model) -> None:
    """Occupy the thread with one item until the gate opens."""
    model.thread.submit("text", ["first"])
    assert model.entered.acquire(timeout=SOON_S)


def test_lone_item_does_not_wait_for_a_fuller_batch(make):
    model = make(max_wait_s=FOREVER_S)
    model.gate.set()

    assert model.run("a") == [b"a"]
    assert model.run("b") == [b"b"]


def test_items_of_one_call_are_one_batch(make):
    model = make()
    model.gate.set()

    assert model.run("a", "b", "c") == [b"a", b"b", b"c"]
    assert model.batches == [("text", ["a", "b", "c"])]


def test_items_that_arrive_during_a_batch_are_the_next(make):
    model = make(max_wait_s=FOREVER_S)
    busy(model)

    futures = [model.thread.submit("text", [value])[0] for value in "abc"]
    model.gate.set()

    assert [future.result(SOON_S) for future in futures] == [b"a", b"b", b"c"]
    assert model.batches == [("text", ["first"]), ("text", ["a", "b", "c"])]


def test_batch_is_never_larger_than_its_limit(make):
    model = make(max_batch_size=2, max_wait_s=0.0)
    busy(model)

    futures = model.thread.submit("text", list("abcde"))
    model.gate.set()

    assert [future.result(SOON_S) for future in futures] == [b"a", b"b", b"c", b"d", b"e"]
    assert [len(items) for _, items in model.batches] == [1, 2, 2, 1]


def test_smaller_batch_waits_for_the_last_size(make):
    model = make(max_wait_s=FOREVER_S)
    model.thread.submit("text", ["a", "b"])
    assert model.entered.acquire(timeout=SOON_S)
    early = model.thread.submit("text", ["c"])
    model.gate.set()

    late = model.thread.submit("text", ["d"])

    assert [future.result(SOON_S) for future in early + late] == [b"c", b"d"]
    assert model.batches[-1] == ("text", ["c", "d"])


def test_wait_for_a_fuller_batch_ends(make):
    model = make(max_wait_s=0.001)
    model.thread.submit("text", ["a", "b"])
    assert model.entered.acquire(timeout=SOON_S)
    alone = model.thread.submit("text", ["c"])[0]

    model.gate.set()

    assert alone.result(SOON_S) == b"c"


@pytest.mark.parametrize(
    ("aging_limit_s", "order"),
    [
        pytest.param(FOREVER_S, ["text", "text", "image"], id="the urgent lane first"),
        pytest.param(0.0, ["text", "image", "text"], id="an item that waited too long first"),
    ],
)
def test_lanes_are_ordered_by_urgency_and_age(make, aging_limit_s, order):
    model = make(aging_limit_s=aging_limit_s)
    busy(model)
    image = model.thread.submit("image", [1])[0]
    text = model.thread.submit("text", ["a"])[0]

    model.gate.set()

    assert (text.result(SOON_S), image.result(SOON_S)) == (b"a", b"1")
    assert [kind for kind, _ in model.batches] == order


def test_bad_item_fails_alone(make):
    model = make()
    model.gate.set()

    good, bad, other = model.thread.submit("text", ["a", "poison", "b"])

    with pytest.raises(ValueError, match="poison"):
        bad.result(SOON_S)
    assert (good.result(SOON_S), other.result(SOON_S)) == (b"a", b"b")
    assert model.run("c") == [b"c"]


def test_cancelled_item_is_not_computed(make):
    model = make()
    busy(model)
    cancelled, kept = model.thread.submit("text", ["a", "b"])

    assert cancelled.cancel()
    model.gate.set()

    assert kept.result(SOON_S) == b"b"
    assert model.batches[-1] == ("text", ["b"])
    with pytest.raises(CancelledError):
        cancelled.result(SOON_S)


def test_full_queue_refuses_with_a_retry_time(make):
    model = make(queue_limit=2)
    busy(model)
    model.thread.submit("text", ["a", "b"])

    with pytest.raises(ResourceExhausted) as refusal:
        model.thread.submit("text", ["c"])

    assert refusal.value.retry_after_ms
    assert len(model.thread.submit("image", [1, 2])) == 2


def test_close_finishes_queued_items_and_takes_no_more(make):
    model = make()
    busy(model)
    waiting = model.thread.submit("text", ["a"])[0]
    model.gate.set()

    model.thread.close()

    assert waiting.done()
    with pytest.raises(Unavailable):
        model.thread.submit("text", ["b"])


def test_batches_run_inside_the_context_on_one_thread(make):
    model = make()
    model.gate.set()
    model.run("a")

    assert model.inside == ["model"]


def test_batches_and_items_are_counted(make):
    model = make()
    model.gate.set()
    model.run("a", "b", "c")
    model.run("d")

    model.thread.close()

    assert (model.thread.batch_count, model.thread.item_count) == (2, 4)
    assert model.counted == [("text", 3), ("text", 1)]


async def test_run_returns_results_in_order(make):
    model = make()
    model.gate.set()

    assert await model.thread.run("image", [1, 2]) == [b"1", b"2"]


async def test_taken_work_is_answered_before_close_returns():
    taken = TakenWork("tester")
    with taken.taking(3):
        closing = asyncio.create_task(taken.close())
        await asyncio.sleep(0)
        assert (taken.count, closing.done()) == (3, False)
    await closing

    with pytest.raises(Unavailable, match="the tester is stopping") as refused, taken.taking():
        pytest.fail("it was taken")
    assert (refused.value.reason, taken.count) == (Reason.DRAINING, 0)
