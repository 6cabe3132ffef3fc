"""Addresses of finished pictures, as clients of this process reach them."""

from collections.abc import Iterable

from starlette.requests import Request

from pentimento.clients.image import ImageClient
from pentimento.domain.image_request import Completed
from pentimento.domain.jobs import ResultUrl
from services.edge.parts import EdgeParts


def origin_of(request: Request, parts: EdgeParts) -> str:
    """Return where addresses of this process begin: as clients reach it, or as this one did."""
    return parts.settings.public_url.rstrip("/") or f"{request.url.scheme}://{request.headers.get('host', '')}"


async def urls_of(client: ImageClient, pictures: Iterable[Completed], origin: str) -> list[str]:
    """Return an address for each picture; those of this process begin with its `origin`."""
    return [whole_url(await client.result_url(one.request_id), origin) for one in pictures]


def whole_url(result: ResultUrl, origin: str) -> str:
    """Return an address with the origin of this process, where it is a path of it."""
    return origin + result.url if result.url.startswith("/") else result.url
