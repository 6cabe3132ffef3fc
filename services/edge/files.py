"""`/v1/files/…`: images of an object store, readable by signed URL."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import PurePosixPath

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from pentimento.domain.errors import NotFound
from pentimento.domain.generation import ObjectReference
from pentimento.rpc.watched_file import kept_signing_keys
from pentimento.stores.errors import ObjectMissing
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.objects.store import FILES_PATH, PathSigner, SignedFile
from services.edge.http.answers import Receive, Scope, Send, client_has, matches_any
from services.edge.http.bounded import CUT_OFF_EXTENSION
from services.edge.parts import EdgeParts

# Images in memory at the same time; further readers wait.
AT_ONCE = 32
CHUNK_BYTES = 64 * 1024
# While readers wait: the rate at which a reader must read its image, and the time before that is enforced.
LEAST_READ_BYTES_PER_S = 16 * 1024
GRACE_S = 5.0


def file_routes(parts: EdgeParts) -> list[BaseRoute]:
    """Return the route of files; none without a store and a key. Raises if either cannot be opened."""
    settings = parts.settings
    if not settings.files_url or settings.signing_key_file is None:
        return []
    keys = kept_signing_keys(settings.signing_key_file)
    stores = [open_objects(url, read_only=True) for url in settings.files_url]
    files = SignedFiles(stores, lambda: PathSigner(*keys()))
    return [Route(f"{FILES_PATH}{{key:path}}", files, methods=["GET"])]


class SignedFiles:
    """Serve stores as an ASGI application; `signer` returns the present verifier."""

    def __init__(self, stores: Sequence[ObjectStore], signer: Callable[[], PathSigner]) -> None:
        self._stores = stores
        self._signer = signer
        self._places = ReaderPlaces(AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        query = scope["query_string"].decode("latin-1")
        now = time.time()
        file = self._signer().verify(request.path_params["key"], query, now)
        headers = headers_of(file, now)
        unchanged = Response(status_code=304, headers=headers)
        if client_has(request, headers["ETag"]):
            await unchanged(scope, receive, send)
            return
        headers["Content-Length"] = str(file.reference.size_bytes)
        async with self._places.taken():
            data = await asyncio.to_thread(self._read, file.reference)
            if matches_any(request):
                await unchanged(scope, receive, send)
                return
            with self._places.reading(lambda: scope["extensions"][CUT_OFF_EXTENSION]("places")) as reader:
                await StreamingResponse(chunks(data, reader), headers=headers)(scope, receive, send)

    def _read(self, reference: ObjectReference) -> bytes:
        """Return an object from the store that has it: each cell has its own. Raises NotFound RESULT_GONE."""
        for store in self._stores:
            with suppress(ObjectMissing):
                return store.get(reference)
        raise NotFound("RESULT_GONE", "the image is no longer stored")


class PlacedReader:
    """A reader of a file. From `due` on, by the loop's clock, it is late and may lose its place to a waiting one."""

    def __init__(self, places: "ReaderPlaces", cut_off: Callable[[], None]) -> None:
        self._places = places
        self._cut_off = cut_off
        self._timer: asyncio.TimerHandle | None = None
        self.due = asyncio.get_running_loop().time() + GRACE_S

    def took(self, size_bytes: int) -> None:
        """Extend `due` for bytes that were read."""
        self.due += size_bytes / LEAST_READ_BYTES_PER_S
        self.hurry(self._places.are_awaited)

    def hurry(self, is_awaited: bool) -> None:
        """Disconnect the reader when it is late, if another one waits for its place."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self.due, self._cut_off) if is_awaited else None


class ReaderPlaces:
    """Places for readers of files. While another reader waits, readers below the required rate are disconnected;
    otherwise only the listener's much lower limit holds."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        self._waiting_count = 0
        self._readers: set[PlacedReader] = set()

    @property
    def are_awaited(self) -> bool:
        """Return whether readers wait for a place."""
        return self._waiting_count > 0

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Hold a place; wait for one in the order of arrival."""
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
        """Yield the reader of a place; `cut_off` closes its connection."""
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
    """Yield an image in chunks, each after the client has read the one before."""
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]
        reader.took(CHUNK_BYTES)


def headers_of(file: SignedFile, now: float) -> dict[str, str]:
    """Return the headers of a file: shown only as an image, and cached as long as its URL is valid."""
    name = f"{PurePosixPath(file.reference.key).name}.{file.media_type.removeprefix('image/')}"
    return {
        "Content-Type": file.media_type,
        "Content-Disposition": f'inline; filename="{name}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": f"private, max-age={int(file.expires_at - now)}, immutable",
        "ETag": f'"{file.reference.digest.removeprefix("sha256:")}"',
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
