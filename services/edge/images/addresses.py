"""URLs of finished images, as clients of this process reach them."""

import time
from collections.abc import Iterable

from starlette.requests import Request

from pentimento.clients.image import ImageClient
from pentimento.domain.errors import FailedPrecondition, FieldViolation, Unavailable
from pentimento.domain.image_request import Completed
from pentimento.domain.jobs import ResultUrl, ResultUrlServer
from services.edge.parts import EdgeParts
from services.edge.settings import EdgeSettings

FIELD = "response_format"
FRESH_S = 10.0
ASK_TIMEOUT_S = 10.0


class UrlOffers:
    """Check whether this deployment serves images by URL; a positive answer is cached for `FRESH_S`."""

    def __init__(self, parts: EdgeParts) -> None:
        self._parts = parts
        self._good_until = float("-inf")

    async def check(self, token: str | None) -> None:
        """Raise FailedPrecondition URLS_OFF if images would have no working URL, before they are generated."""
        now = time.monotonic()
        if now < self._good_until:
            return
        async with self._parts.frontdoor.channel(token) as channel:
            server = await ImageClient(channel).result_url_server(ASK_TIMEOUT_S)
        if server is None:
            return
        check_server(server, self._parts.settings)
        self._good_until = now + FRESH_S


def check_server(server: ResultUrlServer, settings: EdgeSettings) -> None:
    """Raise FailedPrecondition URLS_OFF if no service serves URLs, or if this process should and has no store."""
    if server is ResultUrlServer.NONE:
        raise urls_off("this deployment has no URLs of images")
    if server is ResultUrlServer.EDGE and not settings.files_url:
        raise urls_off("this edge has no store of images")


def urls_off(why: str) -> FailedPrecondition:
    violation = FieldViolation(FIELD, f"must be b64_json: {why}")
    return FailedPrecondition("URLS_OFF", f"{FIELD}: {violation.description}", violations=(violation,))


def address_pending(request_id: str, why: Unavailable) -> FailedPrecondition:
    """Return the error for a caller without a key: a retry would generate the finished image again."""
    where = f"GET /v1/jobs/{request_id}/result?{FIELD}=url returns it once it is available"
    return FailedPrecondition(
        "ADDRESS_PENDING", f"{FIELD}: the image is finished, its URL is not available ({why.message}); {where}"
    )


def origin_of(request: Request, parts: EdgeParts) -> str:
    """Return the origin of this process's URLs: the configured public one, else the one of this request."""
    return parts.settings.public_url.rstrip("/") or f"{request.url.scheme}://{request.headers.get('host', '')}"


async def urls_of(client: ImageClient, images: Iterable[Completed], origin: str) -> list[str]:
    """Return a URL for each image; URLs of this process begin with `origin`."""
    return [whole_url(await client.result_url(one.request_id), origin) for one in images]


def whole_url(result: ResultUrl, origin: str) -> str:
    """Return an absolute URL: a path of this process gets its origin."""
    return origin + result.url if result.url.startswith("/") else result.url
