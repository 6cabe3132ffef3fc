"""`/v1/files/…`: pictures of a store of files, to anybody who has a signed address of one."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import PurePosixPath

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from pentimento.domain.errors import NotFound
from pentimento.rpc.signing_keys import kept_signing_keys
from pentimento.stores.errors import ObjectMissing
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.objects.signed_paths import FILES_PATH, PathSigner, SignedFile
from services.edge.http.bounded import CUT_OFF_EXTENSION
from services.edge.http.known_answers import asker_has, asks_for_new_alone
from services.edge.http.leaving import Receive, Scope, Send
from services.edge.parts import EdgeParts

# Pictures that are held in memory for readers at once; who comes later waits.
AT_ONCE = 32
CHUNK_BYTES = 64 * 1024
# While somebody waits: what a reader must take of its picture each second, and what it has before.
LEAST_READ_BYTES_PER_S = 16 * 1024
GRACE_S = 5.0


def file_routes(parts: EdgeParts) -> list[BaseRoute]:
    """Return the route of files; none where this process has no store or no key. Raises what is wrong with them."""
    settings = parts.settings
    if not settings.files_url or settings.signing_key_file is None:
        return []
    keys = kept_signing_keys(settings.signing_key_file)
    files = SignedFiles(open_objects(settings.files_url, read_only=True), lambda: PathSigner(*keys()))
    return [Route(f"{FILES_PATH}{{key:path}}", files, methods=["GET"])]


class SignedFiles:
    """An ASGI application over a store; `signer` gives what verifies now."""

    def __init__(self, store: ObjectStore, signer: Callable[[], PathSigner]) -> None:
        self._store = store
        self._signer = signer
        self._places = ReaderPlaces(AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        query = scope["query_string"].decode("latin-1")
        now = time.time()
        file = self._signer().verify(request.path_params["key"], query, now)
        headers = headers_of(file, now)
        unchanged = Response(status_code=304, headers=headers)
        if asker_has(request, headers["ETag"]):
            await unchanged(scope, receive, send)
            return
        headers["Content-Length"] = str(file.reference.size_bytes)
        async with self._places.taken():
            try:
                data = await asyncio.to_thread(self._store.get, file.reference)
            except ObjectMissing:
                raise NotFound("RESULT_GONE", "the image is no longer stored") from None
            if asks_for_new_alone(request):
                await unchanged(scope, receive, send)
                return
            with self._places.reading(lambda: scope["extensions"][CUT_OFF_EXTENSION]("places")) as reader:
                await StreamingResponse(chunks(data, reader), headers=headers)(scope, receive, send)


class PlacedReader:
    """A reader that is in time until `due`, by the loop's clock; whoever waits may have its place from then on."""

    def __init__(self, places: "ReaderPlaces", cut_off: Callable[[], None]) -> None:
        self._places = places
        self._cut_off = cut_off
        self._timer: asyncio.TimerHandle | None = None
        self.due = asyncio.get_running_loop().time() + GRACE_S

    def took(self, size_bytes: int) -> None:
        """Note that it has taken so much more."""
        self.due += size_bytes / LEAST_READ_BYTES_PER_S
        self.hurry(self._places.are_awaited)

    def hurry(self, is_awaited: bool) -> None:
        """End it once it is late, where its place is awaited."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self.due, self._cut_off) if is_awaited else None


class ReaderPlaces:
    """Places in which pictures are read. Where all are taken and somebody waits for one, readers that take less than
    they must are cut off: the listener bears with far less where it costs nobody anything."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        self._waiting_count = 0
        self._readers: set[PlacedReader] = set()

    @property
    def are_awaited(self) -> bool:
        """Whether somebody waits for a place."""
        return self._waiting_count > 0

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Hold a place; waits for it, behind those who came before."""
        self._count_waiting(1)
        try:
            await self._free.acquire()
        finally:
            self._count_waiting(-1)
        try:
            yield
        finally:
            self._free.release()

    @contextmanager
    def reading(self, cut_off: Callable[[], None]) -> Iterator[PlacedReader]:
        """Give what counts a reader in a place, whose connection `cut_off` ends."""
        reader = PlacedReader(self, cut_off)
        self._readers.add(reader)
        reader.hurry(self.are_awaited)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
            reader.hurry(False)

    def _count_waiting(self, change: int) -> None:
        before, self._waiting_count = self.are_awaited, self._waiting_count + change
        if self.are_awaited is not before:
            for reader in self._readers:
                reader.hurry(self.are_awaited)


async def chunks(data: bytes, reader: PlacedReader) -> AsyncIterator[bytes]:
    """Yield a picture piece by piece: each waits until its reader has taken the one before."""
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]
        reader.took(CHUNK_BYTES)


def headers_of(file: SignedFile, now: float) -> dict[str, str]:
    """Return how a picture is shown: as that and nothing else, and kept by readers for as long as its address."""
    name = f"{PurePosixPath(file.reference.key).name}.{file.media_type.removeprefix('image/')}"
    return {
        "Content-Type": file.media_type,
        "Content-Disposition": f'inline; filename="{name}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": f"private, max-age={int(file.expires_at - now)}, immutable",
        "ETag": f'"{file.reference.digest.removeprefix("sha256:")}"',
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
