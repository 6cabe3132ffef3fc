"""The public client.

    from pentimento.sdk import Client, ImageRequest

    with Client("127.0.0.1:50400") as client:
        picture = client.generate(ImageRequest("a red circle left of a blue square", num_inference_steps=20))
        picture.save("circle.png")

`AsyncClient` is the same for asyncio. Errors are those of `pentimento.domain.errors`. Names are imported when they
are first used: what does not call needs no grpc.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pentimento.domain.image_request import (
        AskedControlNet,
        AskedLora,
        CacheMode,
        ImageFormat,
        ImageRequest,
        ReplayRequest,
    )
    from pentimento.domain.jobs import RequestPage, RequestQuery, RequestSummary
    from pentimento.domain.requests import RequestState
    from pentimento.sdk.blocking import Client
    from pentimento.sdk.client import AsyncClient
    from pentimento.sdk.picture import Picture
    from pentimento.sdk.retries import RetryPolicy

__all__ = [
    "AskedControlNet",
    "AskedLora",
    "AsyncClient",
    "CacheMode",
    "Client",
    "ImageFormat",
    "ImageRequest",
    "Picture",
    "ReplayRequest",
    "RequestPage",
    "RequestQuery",
    "RequestState",
    "RequestSummary",
    "RetryPolicy",
]

_HOMES = {
    "AskedControlNet": "pentimento.domain.image_request",
    "AskedLora": "pentimento.domain.image_request",
    "AsyncClient": "pentimento.sdk.client",
    "CacheMode": "pentimento.domain.image_request",
    "Client": "pentimento.sdk.blocking",
    "ImageFormat": "pentimento.domain.image_request",
    "ImageRequest": "pentimento.domain.image_request",
    "Picture": "pentimento.sdk.picture",
    "ReplayRequest": "pentimento.domain.image_request",
    "RequestPage": "pentimento.domain.jobs",
    "RequestQuery": "pentimento.domain.jobs",
    "RequestState": "pentimento.domain.requests",
    "RequestSummary": "pentimento.domain.jobs",
    "RetryPolicy": "pentimento.sdk.retries",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
