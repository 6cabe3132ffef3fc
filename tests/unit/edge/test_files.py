"""Pictures by signed address: how many are in memory at once for readers that take their time."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

from pentimento.domain.generation import ObjectReference
from pentimento.stores.objects.signed_paths import FILES_PATH, PathSigner, SignedFile
from pentimento.stores.objects.store import refer_to
from services.edge.files import AT_ONCE, SignedFiles

PICTURE = b"a picture"
SIGNER = PathSigner(bytes(32))


class CountedStore:
    """Has one picture under every key; `read_count` is how often it was asked."""

    def __init__(self) -> None:
        self.read_count = 0

    def get(self, reference: ObjectReference) -> bytes:
        self.read_count += 1
        return PICTURE


def asked(number: int) -> dict[str, Any]:
    """An ASGI scope that asks for the picture under another key each time."""
    address = urlsplit(SIGNER.sign(SignedFile(refer_to(f"results/{number}", PICTURE), "image/png", 2**33)))
    key = address.path.removeprefix(FILES_PATH)
    return {"type": "http", "headers": [], "path_params": {"key": key}, "query_string": address.query.encode()}


async def test_who_comes_when_all_places_are_taken_waits_before_its_picture_is_read() -> None:
    store, goes_on, begun = CountedStore(), asyncio.Event(), asyncio.Semaphore(0)
    files = SignedFiles(store, SIGNER)  # type: ignore[arg-type]

    async def send(message: dict[str, Any]) -> None:
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
