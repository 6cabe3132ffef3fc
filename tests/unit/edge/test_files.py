"""Test images by signed address: the number in memory at once for slow readers."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from pentimento.domain.generation import ObjectReference
from pentimento.stores.objects.store import FILES_PATH, PathSigner, SignedFile, refer_to
from services.edge.files import AT_ONCE, CHUNK_BYTES, PlacedReader, ReaderPlaces, SignedFiles
from services.edge.http.bounded import CUT_OFF_EXTENSION

PICTURE = b"a picture"
SIGNER = PathSigner(bytes(32))


class CountedStore:
    """A store with one image under every key; `read_count` counts reads."""

    def __init__(self) -> None:
        self.read_count = 0

    def get(self, reference: ObjectReference) -> bytes:
        self.read_count += 1
        return PICTURE


def asked(number: int) -> dict[str, Any]:
    """Return an ASGI scope that requests the image under the key of this number."""
    address = urlsplit(SIGNER.sign(SignedFile(refer_to(f"results/{number}", PICTURE), "image/png", 2**33)))
    key = address.path.removeprefix(FILES_PATH)
    values = {"path_params": {"key": key}, "query_string": address.query.encode()}
    return {"type": "http", "headers": [], "extensions": {CUT_OFF_EXTENSION: lambda bound: None}, **values}


async def test_reader_without_place_waits_before_its_image_is_read() -> None:
    store, goes_on, begun = CountedStore(), asyncio.Event(), asyncio.Semaphore(0)
    files = SignedFiles([store], lambda: SIGNER)  # type: ignore[arg-type]

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            begun.release()
            await goes_on.wait()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    readers = [asyncio.create_task(files(asked(number), receive, send)) for number in range(AT_ONCE + 1)]
    for _ in range(AT_ONCE):
        await begun.acquire()
    for _ in range(10):
        await asyncio.sleep(0)
    at_once = store.read_count
    goes_on.set()
    await asyncio.gather(*readers)

    assert (at_once, store.read_count) == (AT_ONCE, AT_ONCE + 1)


class PlacedReaders:
    """Readers in the places of `places`, which leave once they are `cut_off`."""

    def __init__(self, count: int) -> None:
        self.places = ReaderPlaces(count)
        self.cut_off: list[str] = []
        self._leaves: dict[str, asyncio.Event] = {}
        self._reading: list[asyncio.Task[None]] = []

    async def enter(self, name: str) -> PlacedReader:
        entered: asyncio.Future[PlacedReader] = asyncio.get_running_loop().create_future()
        self._leaves[name] = asyncio.Event()

        async def read() -> None:
            async with self.places.taken():
                with self.places.reading(lambda: self._cut_off(name)) as reader:
                    entered.set_result(reader)
                    await self._leaves[name].wait()

        self._reading.append(asyncio.create_task(read()))
        return await entered

    def leave(self, name: str) -> None:
        self._leaves[name].set()

    async def end(self) -> None:
        for leaves in self._leaves.values():
            leaves.set()
        await asyncio.gather(*self._reading)

    def _cut_off(self, name: str) -> None:
        self.cut_off.append(name)
        self.leave(name)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a reader without progress late at once, and one chunk worth an hour."""
    monkeypatch.setattr("services.edge.files.GRACE_S", 0.0)
    monkeypatch.setattr("services.edge.files.LEAST_READ_BYTES_PER_S", CHUNK_BYTES / 3600)


@pytest.mark.usefixtures("strict")
async def test_stalled_reader_loses_its_place_to_waiting_one() -> None:
    readers = PlacedReaders(2)
    (await readers.enter("takes")).took(CHUNK_BYTES)
    await readers.enter("stops")

    await readers.enter("waits")

    assert readers.cut_off == ["stops"]
    await readers.end()


@pytest.mark.usefixtures("strict")
async def test_time_of_reader_grows_with_bytes_taken() -> None:
    readers = PlacedReaders(1)
    reader = await readers.enter("stops later")
    reader.took(CHUNK_BYTES)
    waiting = asyncio.create_task(readers.enter("waits"))
    await asyncio.sleep(0)
    before = list(readers.cut_off)

    reader.took(-CHUNK_BYTES)
    await waiting

    assert (before, readers.cut_off) == ([], ["stops later"])
    await readers.end()


@pytest.mark.usefixtures("strict")
async def test_late_reader_keeps_its_place_if_none_waits() -> None:
    readers = PlacedReaders(2)
    (reader := await readers.enter("slow")).took(CHUNK_BYTES)
    (await readers.enter("quick")).took(CHUNK_BYTES)
    waiting = asyncio.create_task(readers.enter("waited"))
    await asyncio.sleep(0)
    readers.leave("quick")
    await waiting

    reader.took(-CHUNK_BYTES)
    for _ in range(10):
        await asyncio.sleep(0)

    assert readers.cut_off == []
    await readers.end()
