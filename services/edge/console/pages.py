"""The console's static files, read once and served plain or compressed."""

import gzip
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pentimento.domain.errors import NotFound
from services.edge.http.answers import client_has, matches_any

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Scripts and styles come only from this package; images are blobs of bytes that a page loaded.
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' blob:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {sources}" for name, sources in POLICY.items()),
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    # A browser revalidates each time, and mostly gets 304.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True)
class StaticFile:
    """A served file; `tag` changes with its bytes."""

    media_type: str
    data: bytes = field(repr=False)
    compressed: bytes = field(repr=False)
    tag: str

    @classmethod
    def read(cls, path: Path) -> "StaticFile":
        """Read a file; its suffix gives the media type."""
        data = path.read_bytes()
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        return cls(TYPES[path.suffix], data, gzip.compress(data, mtime=0), tag)

    def response(self, request: Request) -> Response:
        """Return the answer to a request: 304 if the client has the file."""
        headers = {**HEADERS, "ETag": self.tag}
        if client_has(request, self.tag) or matches_any(request):
            return Response(status_code=304, headers=headers)
        if takes_gzip(request):
            return Response(
                self.compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type=self.media_type
            )
        return Response(self.data, headers=headers, media_type=self.media_type)


def takes_gzip(request: Request) -> bool:
    """Return whether the answer may be compressed."""
    for one in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() == "gzip":
            # Zero is "not acceptable" (RFC 9110, 12.4.2), with up to three decimals.
            return not weight.strip() or weight.strip().removeprefix("q=").strip("0.") != ""
    return False


def read_files() -> dict[str, StaticFile]:
    """Return the files by name: a path can reach no others."""
    return {path.name: StaticFile.read(path) for path in sorted(STATIC.iterdir()) if path.suffix in TYPES}


def page_routes() -> list[BaseRoute]:
    files = read_files()

    async def page(request: Request) -> Response:
        return files["index.html"].response(request)

    async def static(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None:
            raise NotFound("UNKNOWN_PATH", "the console has no such file")
        return file.response(request)

    return [Route("/", page), Route("/console/static/{name}", static)]
