"""Split images above a client's message limit."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.clients.image import DEFAULT_MESSAGE_BYTES
from pentimento.domain.errors import InvalidArgument, ResourceExhausted
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, ImageFailed
from pentimento.domain.reasons import Reason
from pentimento.wire.codec import encode

# Bytes of an answer without its image, mostly the prompts in the provenance.
LEAST_MESSAGE_BYTES = 256 * 1024
# Bytes of a part with its framing.
CHUNK_BYTES = 1 << 20
_FRAMING_BYTES = 64

Response = TypeVar("Response", pb.GenerateResponse, pb.ReplayResponse, pb.AttachResponse)


class ImageSplitter(Generic[Response]):
    """Convert the events of one stream to messages within the limit of its client."""

    def __init__(self, kind: type[Response], max_message_bytes: int, own_limit_bytes: int) -> None:
        """Choose the limit from `max_message_bytes` (the client's, 0 for none) and `own_limit_bytes` (the most that
        this process sends). Raises InvalidArgument for a limit below the size of an answer."""
        if 0 < max_message_bytes < LEAST_MESSAGE_BYTES:
            limit = f"must be 0 or at least {LEAST_MESSAGE_BYTES}, got {max_message_bytes}"
            raise InvalidArgument.of("max_message_bytes", limit)
        self._kind: type[Response] = kind
        self._is_stated = max_message_bytes > 0
        self._limit_bytes = min(max_message_bytes or DEFAULT_MESSAGE_BYTES, own_limit_bytes)
        self._is_several = False

    def messages(self, event: GenerateEvent) -> Iterator[Response]:
        """Yield the messages of an event, each within the limit. Raises ResourceExhausted MESSAGE_TOO_LARGE for a large
        image of a client that states no limit, unless it is one of several."""
        if isinstance(event, Accepted):
            self._is_several = bool(event.image_request_ids)
        message = encode(event, self._kind)
        if not isinstance(event, Completed) or message.ByteSize() <= self._limit_bytes:
            yield message
        elif self._is_stated:
            yield from self._parts(event)
        elif self._is_several:
            yield encode(ImageFailed(event.request_id, event.image_index, _not_sent(event)), self._kind)
        else:
            raise _not_sent(event)

    def _parts(self, event: Completed) -> Iterator[Response]:
        size = min(self._limit_bytes, CHUNK_BYTES) - _FRAMING_BYTES
        for start in range(0, len(event.image), size):
            chunk = pb.ImageChunk(image_index=event.image_index, data=event.image[start : start + size])
            yield self._kind(image_chunk=chunk)
        message = encode(replace(event, image=b""), self._kind)
        message.completed.image_size_bytes = len(event.image)
        yield message


def _not_sent(event: Completed) -> ResourceExhausted:
    return ResourceExhausted(
        Reason.MESSAGE_TOO_LARGE,
        f"the image has {len(event.image)} bytes, and a client that states no max_message_bytes is sent messages of at"
        f" most {DEFAULT_MESSAGE_BYTES}: ask for {event.request_id} again by Attach with max_message_bytes, or by"
        " GetResultUrl",
    )
