"""LoRAs on their way: loaded once, kept while they are used, tried again, and lost with a reason."""

import gc
import threading
import weakref

import pytest

from pentimento.diffusion.loras import BadLora, Lora
from pentimento.diffusion.loras.loading import LoadingLoras, LoraLoader
from pentimento.domain.errors import PentimentoError, Unavailable
from pentimento.policies.components import Utility

SIZE = 100


class Disk:
    """Files with reads that a test can delay or fail."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.errors: list[Exception] = []
        self.open = threading.Event()
        self.open.set()

    def read(self, digest: str) -> Lora:
        assert self.open.wait(60)
        self.reads.append(digest)
        if self.errors:
            raise self.errors.pop(0)
        return Lora(digest, SIZE, {})


class Desk:
    """A loader, its disk, and the news of loads that ended."""

    def __init__(self, memory_bytes: int = 10 * SIZE) -> None:
        self.disk = Disk()
        self._news = threading.Semaphore(0)
        self.loader = LoraLoader(self.disk.read, memory_bytes, self._news.release, Utility())

    def ask(self, *digests: str, latest_step: int = 0, exactly: bool = False) -> LoadingLoras:
        return self.loader.ask([(digest, 0.5) for digest in digests], latest_step, exactly=exactly)

    def await_loads(self, count: int) -> None:
        for _ in range(count):
            assert self._news.acquire(timeout=120)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_nothing_is_taken_before_all_are_there(desk: Desk) -> None:
    desk.disk.open.clear()
    source = desk.ask("a", "b", latest_step=3)
    assert source.take(0) is None and source.latest_step == 3

    desk.disk.open.set()
    desk.await_loads(2)

    taken = source.take(1)
    assert taken is not None
    assert [(one.lora.digest, one.weight) for one in taken] == [("a", 0.5), ("b", 0.5)]


def test_two_requests_share_a_load_and_a_third_needs_none(desk: Desk) -> None:
    desk.disk.open.clear()
    first, second = desk.ask("a"), desk.ask("a")
    desk.disk.open.set()
    desk.await_loads(1)

    third = desk.ask("a")

    assert all(source.take(0) for source in (first, second, third))
    assert desk.disk.reads == ["a"]
    assert desk.loader.resident == ("a",)


def test_least_recently_used_loras_are_evicted_except_the_last(desk: Desk) -> None:
    desk = Desk(memory_bytes=2 * SIZE)
    for digest in ("a", "b"):
        desk.ask(digest)
        desk.await_loads(1)
    desk.ask("a")
    desk.ask("c")
    desk.await_loads(1)
    assert desk.loader.resident == ("a", "c")

    narrow = Desk(memory_bytes=1)
    source = narrow.ask("a")
    narrow.await_loads(1)

    assert source.take(0) and narrow.loader.resident == ("a",)


def test_load_ahead_displaces_only_loras_of_less_worth() -> None:
    desk = Desk(memory_bytes=2 * SIZE)
    for digest in ("a", "b"):
        desk.ask(digest)
        desk.await_loads(1)
    desk.ask("a", "b")

    desk.loader.begin(["c"], ahead=True)
    desk.await_loads(1)

    assert desk.loader.resident == ("a", "b")
    # The second time it has as many uses, and the newest.
    desk.loader.begin(["c"], ahead=True)
    desk.await_loads(1)
    assert desk.disk.reads == ["a", "b", "c", "c"] and "c" in desk.loader.resident


def test_memory_has_room_for_one_more_of_the_mean_size() -> None:
    desk = Desk(memory_bytes=2 * SIZE)
    found = [desk.loader.has_room]
    for digest in ("a", "b"):
        desk.ask(digest)
        desk.await_loads(1)
        found.append(desk.loader.has_room)

    assert found == [True, True, False]


def test_failed_load_is_retried(desk: Desk) -> None:
    desk.disk.errors = [OSError("the disk went away")]
    source = desk.ask("a")
    desk.await_loads(1)

    assert source.take(0) is not None
    assert desk.disk.reads == ["a", "a"]


@pytest.mark.parametrize(
    ("errors", "kind", "reason", "reads"),
    [
        ([OSError("gone"), MemoryError()], Unavailable, "LORA_UNAVAILABLE", 2),
        ([BadLora("another file by now")], BadLora, "BAD_LORA", 1),
    ],
)
def test_lost_load_states_its_reason_and_is_retried(
    errors: list[Exception], kind: type[PentimentoError], reason: str, reads: int, desk: Desk
) -> None:
    desk.disk.errors = errors
    source = desk.ask("a")
    desk.await_loads(1)

    with pytest.raises(kind) as raised:
        source.take(0)
    again = desk.ask("a")
    desk.await_loads(1)

    assert raised.value.reason == reason
    assert len(desk.disk.reads) == reads + 1
    assert again.take(0) is not None


class ReadBytes(bytearray):
    """A file's bytes; a test sees when they are released."""


@pytest.mark.parametrize("kind", [BadLora, MemoryError])
def test_refused_file_keeps_no_memory(kind: type[Exception]) -> None:
    read, ended = [], threading.Event()

    def refuse(digest: str) -> Lora:
        data = ReadBytes(SIZE)
        read.append(weakref.ref(data))
        raise kind("what it holds is not to be used")

    loader = LoraLoader(refuse, 10 * SIZE, ended.set, Utility())
    source = loader.ask([("a", 0.5)], 0)
    assert ended.wait(120)
    with pytest.raises(PentimentoError) as told:
        source.take(0)
    gc.collect()

    assert told.value.reason in ("BAD_LORA", "LORA_UNAVAILABLE")
    assert [data() for data in read] == [None] * len(read)


def test_replay_has_loras_from_its_step_on(desk: Desk) -> None:
    source = desk.ask("a", latest_step=3, exactly=True)
    desk.await_loads(1)

    assert [source.take(step) is not None for step in range(5)] == [False, False, False, True, True]


def test_closed_loader_drops_pending_loads(desk: Desk) -> None:
    desk.loader.close()
    desk.loader.close()

    with pytest.raises(RuntimeError):
        desk.ask("a")


def test_loads_that_end_before_ask_returns_do_not_block(desk: Desk) -> None:
    """The callback of such a load runs on the calling thread, which must not hold its lock."""
    digests = [f"{number}" for number in range(500)]

    sources = [desk.ask(digest) for digest in digests]
    desk.await_loads(len(digests))

    assert all(source.take(0) for source in sources)
