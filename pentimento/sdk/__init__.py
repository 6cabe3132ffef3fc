"""The public client.

    from pentimento import Client, ImageRequest

    with Client("127.0.0.1:50400") as client:
        image = client.generate(ImageRequest("a red circle left of a blue square", num_inference_steps=20))
        image.save("circle.png")
        for image in client.generate_all(ImageRequest("a blue ring", image_count=4)).images:
            image.to_pil().show()

`AsyncClient` is the same for asyncio. Both stream typed events and raise the errors of `pentimento.domain.errors`.
Names are imported on first use, so that programs without calls need no grpc.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pentimento.clients.retries import RetryPolicy
    from pentimento.domain.errors import (
        Aborted,
        Cancelled,
        DeadlineExceeded,
        FailedPrecondition,
        Internal,
        InvalidArgument,
        NotFound,
        PentimentoError,
        PermissionDenied,
        ResourceExhausted,
        Unauthenticated,
        Unavailable,
    )
    from pentimento.domain.generation import InitImage
    from pentimento.domain.image_request import (
        Accepted,
        AskedControlNet,
        AskedImagePrompt,
        AskedLora,
        CacheMode,
        Completed,
        GenerateEvent,
        ImageFailed,
        ImageFormat,
        ImageRequest,
        Progress,
        ReplayRequest,
        RequestStatus,
        Routed,
    )
    from pentimento.domain.jobs import RequestPage, RequestQuery, RequestState, RequestSummary
    from pentimento.sdk.blocking import Client
    from pentimento.sdk.client import AsyncClient
    from pentimento.sdk.generated_image import GeneratedImage, ImageSet

__all__ = [
    "Aborted",
    "Accepted",
    "AskedControlNet",
    "AskedImagePrompt",
    "AskedLora",
    "AsyncClient",
    "CacheMode",
    "Cancelled",
    "Client",
    "Completed",
    "DeadlineExceeded",
    "FailedPrecondition",
    "GenerateEvent",
    "GeneratedImage",
    "ImageFailed",
    "ImageFormat",
    "ImageRequest",
    "ImageSet",
    "InitImage",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "PentimentoError",
    "PermissionDenied",
    "Progress",
    "ReplayRequest",
    "RequestPage",
    "RequestQuery",
    "RequestState",
    "RequestStatus",
    "RequestSummary",
    "ResourceExhausted",
    "RetryPolicy",
    "Routed",
    "Unauthenticated",
    "Unavailable",
]

# In this order: what needs grpc comes last.
_HOMES = (
    "pentimento.domain.errors",
    "pentimento.domain.image_request",
    "pentimento.domain.generation",
    "pentimento.domain.jobs",
    "pentimento.domain.jobs",
    "pentimento.clients.retries",
    "pentimento.sdk.generated_image",
    "pentimento.sdk.client",
    "pentimento.sdk.blocking",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in map(importlib.import_module, _HOMES):
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
