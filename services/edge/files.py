"""`/v1/files/…`: pictures of a store of files, to anybody who has a signed address of one."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import PurePosixPath

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import BaseRoute, Route

from pentimento.domain.errors import NotFound
from pentimento.files.signing_keys import read_signing_keys
from pentimento.stores.errors import ObjectMissing
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.objects.signed_paths import FILES_PATH, PathSigner, SignedFile
from services.edge.http.leaving import Receive, Scope, Send
from services.edge.parts import EdgeParts

# Pictures that are held in memory for readers at once; who comes later waits.
AT_ONCE = 32
CHUNK_BYTES = 64 * 1024


def file_routes(parts: EdgeParts) -> list[BaseRoute]:
    """Return the route of files; none where this process has no store or no key. Raises what is wrong with them."""
    settings = parts.settings
    if not settings.files_url or settings.signing_key_file is None:
        return []
    signer = PathSigner(*read_signing_keys(settings.signing_key_file))
    files = SignedFiles(open_objects(settings.files_url, read_only=True), signer)
    return [Route(f"{FILES_PATH}{{key:path}}", files, methods=["GET"])]


class SignedFiles:
    """An ASGI application over a store."""

    def __init__(self, store: ObjectStore, signer: PathSigner) -> None:
        self._store = store
        self._signer = signer
        self._places = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        query = scope["query_string"].decode("latin-1")
        now = time.time()
        file = self._signer.verify(request.path_params["key"], query, now)
        async with self._places:
            try:
                data = await asyncio.to_thread(self._store.get, file.reference)
            except ObjectMissing:
                raise NotFound("RESULT_GONE", "the picture is not kept any more") from None
            await StreamingResponse(chunks(data), headers=headers_of(file, now))(scope, receive, send)


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    """Yield a picture piece by piece: each waits until its reader has taken the one before."""
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


def headers_of(file: SignedFile, now: float) -> dict[str, str]:
    """Return how a picture is shown: as that and nothing else, and kept by readers for as long as its address."""
    name = f"{PurePosixPath(file.reference.key).name}.{file.media_type.removeprefix('image/')}"
    return {
        "Content-Type": file.media_type,
        "Content-Length": str(file.reference.size_bytes),
        "Content-Disposition": f'inline; filename="{name}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": f"private, max-age={int(file.expires_at - now)}, immutable",
        "ETag": f'"{file.reference.digest.removeprefix("sha256:")}"',
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
