"""What the console's pages are made of: files of this package, read once, served as they are or compressed."""

import gzip
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pentimento.domain.errors import NotFound
from services.edge.http.known_answers import asker_has, asks_for_new_alone

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Scripts and styles are files of this package alone; pictures are made of bytes that a page asked for.
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
    # A browser asks each time whether it is still the same, and mostly hears that it is.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True)
class StaticFile:
    """A file as it is served; `tag` changes with its bytes."""

    media_type: str
    data: bytes = field(repr=False)
    compressed: bytes = field(repr=False)
    tag: str

    @classmethod
    def read(cls, path: Path) -> "StaticFile":
        """Return the file of that path, whose ending says what it is."""
        data = path.read_bytes()
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        return cls(TYPES[path.suffix], data, gzip.compress(data, mtime=0), tag)

    def response(self, request: Request) -> Response:
        """Return the answer to a request for it: 304 where the asker has it."""
        headers = {**HEADERS, "ETag": self.tag}
        if asker_has(request, self.tag) or asks_for_new_alone(request):
            return Response(status_code=304, headers=headers)
        if takes_gzip(request):
            return Response(
                self.compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type=self.media_type
            )
        return Response(self.data, headers=headers, media_type=self.media_type)


def takes_gzip(request: Request) -> bool:
    """Return whether an answer to it may be compressed."""
    for one in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() == "gzip":
            # Zero is "not acceptable" (RFC 9110, 12.4.2), with up to three more of them.
            return not weight.strip() or weight.strip().removeprefix("q=").strip("0.") != ""
    return False


def read_files() -> dict[str, StaticFile]:
    """Return the files by their names: nothing else can be asked for, whatever a path says."""
    return {path.name: StaticFile.read(path) for path in sorted(STATIC.iterdir()) if path.suffix in TYPES}


def page_routes() -> list[BaseRoute]:
    """Return the routes of the page and of its files."""
    files = read_files()

    async def page(request: Request) -> Response:
        """Answer with the console."""
        return files["index.html"].response(request)

    async def static(request: Request) -> Response:
        """Answer with a file of the console."""
        file = files.get(request.path_params["name"])
        if file is None:
            raise NotFound("UNKNOWN_PATH", "the console has no such file")
        return file.response(request)

    return [Route("/", page), Route("/console/static/{name}", static)]
