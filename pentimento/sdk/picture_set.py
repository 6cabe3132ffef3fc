"""The pictures of one request, and why those are missing that are."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from pentimento.domain.errors import Internal
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, PictureFailed
from pentimento.sdk.picture import Picture


@dataclass(frozen=True)
class PictureSet:
    """What became of a request for one or several pictures. `pictures` are in the order of their indexes, without those
    that failed, which `failures` names. `request_id` is of all of them together."""

    request_id: str
    pictures: tuple[Picture, ...]
    failures: tuple[PictureFailed, ...] = ()

    def raise_failure(self) -> "PictureSet":
        """Return it where every picture is there. Raises the error of the first that is not."""
        if self.failures:
            raise self.failures[0].error
        return self


async def pictures_of(stream: AsyncGenerator[GenerateEvent, None]) -> PictureSet:
    """Return the pictures that the stream brings. Raises what it ends with, where that is an error."""
    request_id, pictures, failures = "", dict[int, Picture](), dict[int, PictureFailed]()
    async with aclosing(stream) as events:
        # To its end: a call that its client breaks off leaves memory behind in a server (grpc/grpc#43360).
        async for event in events:
            match event:
                case Accepted():
                    request_id = event.request_id
                case Completed():
                    pictures[event.image_index] = Picture.of(event)
                case PictureFailed():
                    failures[event.image_index] = event
    if not pictures:
        raise Internal("STREAM_ENDED_EARLY", "the stream ended without an image and without an error")
    in_order = tuple(pictures[index] for index in sorted(pictures))
    return PictureSet(request_id, in_order, tuple(failures[index] for index in sorted(failures)))
