"""Addresses of finished pictures, as clients of this process reach them."""

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
    """Whether pictures can come as addresses here: known for a while where they can, asked anew where they cannot."""

    def __init__(self, parts: EdgeParts) -> None:
        self._parts = parts
        self._good_until = float("-inf")

    async def check(self, token: str | None) -> None:
        """Raise FailedPrecondition URLS_OFF where a picture would have no address that leads to it: before it is asked
        for."""
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
    """Raise FailedPrecondition URLS_OFF where nobody serves addresses, or this process should and has no files."""
    if server is ResultUrlServer.NONE:
        raise urls_off("this deployment has no addresses of images")
    if server is ResultUrlServer.EDGE and not settings.files_url:
        raise urls_off("no images are served here")


def urls_off(why: str) -> FailedPrecondition:
    violation = FieldViolation(FIELD, f"must be b64_json: {why}")
    return FailedPrecondition("URLS_OFF", f"{FIELD}: {violation.description}", violations=(violation,))


def address_pending(request_id: str, why: Unavailable) -> FailedPrecondition:
    """Return what a caller without a key hears, whose next try would paint again what is painted."""
    where = f"GET /v1/jobs/{request_id}/result?{FIELD}=url has the address once there is one"
    return FailedPrecondition(
        "ADDRESS_PENDING", f"{FIELD}: the image is ready, its address is not ({why.message}); {where}"
    )


def origin_of(request: Request, parts: EdgeParts) -> str:
    """Return where addresses of this process begin: as clients reach it, or as this one did."""
    return parts.settings.public_url.rstrip("/") or f"{request.url.scheme}://{request.headers.get('host', '')}"


async def urls_of(client: ImageClient, pictures: Iterable[Completed], origin: str) -> list[str]:
    """Return an address for each picture; those of this process begin with its `origin`."""
    return [whole_url(await client.result_url(one.request_id), origin) for one in pictures]


def whole_url(result: ResultUrl, origin: str) -> str:
    """Return an address with the origin of this process, where it is a path of it."""
    return origin + result.url if result.url.startswith("/") else result.url
