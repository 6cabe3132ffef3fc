"""Write a stream: split images above a client's message limit, and end streams without a reader."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Generic, Self, TypeVar

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


class StreamReaper:
    """Cancel the task that entered it if a message waits for `idle_s` seconds. A stream has one timer for all messages,
    since most are taken immediately."""

    __slots__ = ("_idle_s", "_loop", "_since", "_task", "_timer")

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def begin(self) -> None:
        """Note that a message waits for the client from now on."""
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(self._since + self._idle_s, self._look)

    def end(self) -> None:
        """Note that the client took the message."""
        self._since = None

    def _look(self) -> None:
        self._timer = None
        if self._since is None:
            return
        due = self._since + self._idle_s
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._look)
        elif self._task is not None:
            self._task.cancel()
