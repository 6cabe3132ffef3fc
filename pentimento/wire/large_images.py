"""Images above the message limit of a client: sent in chunks, or reported as too large."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.domain.errors import Internal, InvalidArgument, ResourceExhausted
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, PictureFailed
from pentimento.domain.reasons import Reason
from pentimento.wire.image import event_from_proto

MEBIBYTE = 1 << 20
# gRPC's own, of clients that do not change it.
DEFAULT_MESSAGE_BYTES = 4 * MEBIBYTE
# What an answer takes besides its image: mostly the prompts in its provenance.
LEAST_MESSAGE_BYTES = 256 * 1024
# Of a chunk, what frames its bytes included.
CHUNK_BYTES = MEBIBYTE
_FRAMING_BYTES = 64

Response = TypeVar("Response", pb.GenerateResponse, pb.ReplayResponse, pb.AttachResponse)


class ImageSplitter(Generic[Response]):
    """Converts the events of one stream to messages within the limit of its client."""

    def __init__(
        self,
        kind: type[Response],
        to_proto: Callable[[GenerateEvent], Response],
        max_message_bytes: int,
        own_limit_bytes: int,
    ) -> None:
        """`max_message_bytes`: as the client states it, 0 for nothing; `own_limit_bytes`: what this process sends at
        most. InvalidArgument for less than an answer needs."""
        if 0 < max_message_bytes < LEAST_MESSAGE_BYTES:
            limit = f"must be 0 or at least {LEAST_MESSAGE_BYTES}, got {max_message_bytes}"
            raise InvalidArgument.of("max_message_bytes", limit)
        self._kind: type[Response] = kind
        self._to_proto: Callable[[GenerateEvent], Response] = to_proto
        self._is_stated = max_message_bytes > 0
        self._limit_bytes = min(max_message_bytes or DEFAULT_MESSAGE_BYTES, own_limit_bytes)
        self._is_several = False

    def messages(self, event: GenerateEvent) -> Iterator[Response]:
        """Yield the messages of an event, each within the limit. Raises ResourceExhausted MESSAGE_TOO_LARGE for a large
        image of a client that states no limit, unless it is one of several."""
        if isinstance(event, Accepted):
            self._is_several = bool(event.image_request_ids)
        message = self._to_proto(event)
        if not isinstance(event, Completed) or message.ByteSize() <= self._limit_bytes:
            yield message
        elif self._is_stated:
            yield from self._parts(event)
        elif self._is_several:
            yield self._to_proto(PictureFailed(event.request_id, event.image_index, _not_sent(event)))
        else:
            raise _not_sent(event)

    def _parts(self, event: Completed) -> Iterator[Response]:
        size = min(self._limit_bytes, CHUNK_BYTES) - _FRAMING_BYTES
        for start in range(0, len(event.image), size):
            chunk = pb.ImageChunk(image_index=event.image_index, data=event.image[start : start + size])
            yield self._kind(image_chunk=chunk)
        message = self._to_proto(replace(event, image=b""))
        message.completed.image_size_bytes = len(event.image)
        yield message


class ImageJoiner:
    """Puts the images of one stream together again."""

    def __init__(self) -> None:
        self._chunks: defaultdict[int, list[bytes]] = defaultdict(list)

    def event(self, message: pb.GenerateResponse | pb.ReplayResponse | pb.AttachResponse) -> GenerateEvent | None:
        """Return the event of a message; None for a chunk. Raises Internal IMAGE_INCOMPLETE when chunks are missing."""
        if message.WhichOneof("event") == "image_chunk":
            self._chunks[message.image_chunk.image_index].append(message.image_chunk.data)
            return None
        event = event_from_proto(message)
        if not isinstance(event, Completed) or not message.completed.image_size_bytes:
            return event
        image, size_bytes = b"".join(self._chunks.pop(event.image_index, ())), message.completed.image_size_bytes
        if len(image) != size_bytes:
            raise Internal("IMAGE_INCOMPLETE", f"{len(image)} of the {size_bytes} bytes of an image came")
        return replace(event, image=image)


def _not_sent(event: Completed) -> ResourceExhausted:
    return ResourceExhausted(
        Reason.MESSAGE_TOO_LARGE,
        f"the image has {len(event.image)} bytes, and a client that states no max_message_bytes is sent messages of at"
        f" most {DEFAULT_MESSAGE_BYTES}: ask for {event.request_id} again by Attach with max_message_bytes, or by"
        " GetResultUrl",
    )
