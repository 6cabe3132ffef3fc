"""Collect the images of one request, and the errors of the failed ones."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from pentimento.domain.errors import Internal
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, ImageFailed
from pentimento.sdk.generated_image import GeneratedImage


@dataclass(frozen=True)
class ImageSet:
    """Hold the results of a request for one or several images. `images` are in the order of their indexes; `failures`
    has the indexes that failed. `request_id` identifies the whole request."""

    request_id: str
    images: tuple[GeneratedImage, ...]
    failures: tuple[ImageFailed, ...] = ()

    def raise_failure(self) -> "ImageSet":
        """Return this set if no image failed, else raise the first error."""
        if self.failures:
            raise self.failures[0].error
        return self


async def images_of(stream: AsyncGenerator[GenerateEvent, None]) -> ImageSet:
    """Return the images of a stream, or raise the error at its end."""
    request_id, images, failures = "", dict[int, GeneratedImage](), dict[int, ImageFailed]()
    async with aclosing(stream) as events:
        # Read to its end: a call that the client ends early leaks memory in a server (grpc/grpc#43360).
        async for event in events:
            match event:
                case Accepted():
                    request_id = event.request_id
                case Completed():
                    images[event.image_index] = GeneratedImage.of(event)
                case ImageFailed():
                    failures[event.image_index] = event
    if not images:
        raise Internal("STREAM_ENDED_EARLY", "the stream ended without an image and without an error")
    in_order = tuple(images[index] for index in sorted(images))
    return ImageSet(request_id, in_order, tuple(failures[index] for index in sorted(failures)))
