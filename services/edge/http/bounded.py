"""Uvicorn's HTTP/1.1 protocol with bounds on heads, slow senders and slow readers.

A connection only records its phase and the time since when; one periodic sweep over all connections ends the slow ones.
The llhttp parser rejects request smuggling (two lengths, a length together with chunks).
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from services.edge.metrics import CONNECTIONS, CUT_OFF

# The rate below which a reader is disconnected.
LEAST_READ_BYTES_PER_S = 1024
# Time before a sender may be disconnected to make room for others.
SENDING_GRACE_S = 1.0
# A sender of a body below this rate is disconnected after SLOW_SENDING_S.
LEAST_SENT_BYTES_PER_S = 1024
SLOW_SENDING_S = 20.0
# The longest pause in the rest of a body after the last answer of its connection.
LAST_BODY_S = 2.0
MAX_PIPELINED = 8
# Extension of a request's scope: a handler ends the connection with it, for its own bound.
CUT_OFF_EXTENSION = "pentimento.cut_off"
ANSWERS = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
}


@dataclass(frozen=True)
class HttpLimits:
    """Limits of connections: times to receive a head and a body, and until a slow reader is disconnected. Of all unread
    answers together beyond `unread_bytes` the longest read one ends."""

    connections: int = 1024
    idle_timeout_s: float = 90.0
    header_bytes: int = 16 << 10
    unread_bytes: int = 256 << 20
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 30.0


DEFAULT_LIMITS = HttpLimits()


class ConnectionPhase(Enum):
    """The phase of a connection."""

    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"


@dataclass
class Unread:
    """Unread bytes of an answer: since when there are some, when they last fell fast enough, and their number then."""

    began: float
    since: float
    size_bytes: int

    def fell_to(self, size_bytes: int, now: float) -> bool:
        """Return whether they fell at the required rate."""
        return self.size_bytes - size_bytes >= LEAST_READ_BYTES_PER_S * (now - self.since)


class BoundedHttp(HttpToolsProtocol):
    """An HTTP/1.1 connection within `limits`.

    `idle` has the connections that wait for a head, without a running answer, the longest waiting first. At the limit
    of connections the first one without an unread answer is closed, else the slowest sender of a body."""

    def __init__(self, *args: Any, limits: HttpLimits, idle: "dict[BoundedHttp, None]", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._idle = idle
        self._phase = ConnectionPhase.HEAD
        self._since = self._progress = time.monotonic()
        self._head_bytes = self._body_bytes = self._beside_body_bytes = 0
        # When the present body last had the required rate, and its bytes then.
        self._sent_mark = (self._since, 0)
        self._unread: Unread | None = None
        self._refused = False
        # The request with the running answer; `cycle` is the newest request.
        self._answered: RequestResponseCycle | None = None
        # Whether the last answer of the connection has ended before its request's body.
        self._ends_with_body = False
        # Whether the parser repeats a head that was handled before.
        self._repeats_head = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        CONNECTIONS.set(len(self.connections))
        self._idle[self] = None
        if len(self.connections) > self._limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._idle.pop(self, None)
        CONNECTIONS.set(len(self.connections))
        # With pipelined requests, uvicorn notifies only the last one.
        if (answered := self._answered) is not None and not answered.response_complete:
            answered.disconnected = True
            answered.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._progress = time.monotonic()
        if self._phase is ConnectionPhase.ANSWER and (self.cycle is None or self.cycle.response_complete):
            self._enter(ConnectionPhase.HEAD)
        within_body, body_bytes = self._phase is ConnectionPhase.BODY, self._body_bytes
        if not within_body:
            self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if within_body and self._phase is ConnectionPhase.BODY:
            # Trailers or chunk extensions: the parser buffers incomplete ones.
            self._beside_body_bytes += len(data) if self._body_bytes == body_bytes else -self._beside_body_bytes
            if self._beside_body_bytes > self._limits.header_bytes:
                self._refuse(431, "header_bytes")
        # The head is incomplete: all received bytes belong to it.
        if self._phase is ConnectionPhase.HEAD and self._head_bytes > self._limits.header_bytes:
            self._refuse(431, "header_bytes")

    def _parse(self, data: bytes) -> None:
        """Parse like uvicorn, but ignore offers of an upgrade (h2c, from Java's client): the parser skips the body of
        such a request, which would be lost or be parsed as the next request."""
        while not self._refused:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offered:
                data = data[offered.args[0] :]
                self._decline()
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return

    def _decline(self) -> None:
        """Continue after a head with a new parser, which gets the head again without the upgrade."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if lengths := self._lengths():
            self._repeats_head = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % b"".join(b"%s: %s\r\n" % one for one in lengths))
            self._repeats_head = False

    def _lengths(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of a head that delimit its body; none without a body."""
        return [one for one in self.headers if one[0] in (b"content-length", b"transfer-encoding")]

    def on_url(self, url: bytes) -> None:
        if not self._repeats_head:
            super().on_url(url)

    def on_message_begin(self) -> None:
        if self._repeats_head:
            return
        # It was set again if the previous request's body ended after its answer.
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self.scope["extensions"] = {CUT_OFF_EXTENSION: self.cut_off}  # type: ignore[dict-item]
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(400, "pipeline")
        if self._phase is not ConnectionPhase.HEAD:
            self._enter(ConnectionPhase.HEAD)

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers are ignored: proxies and this process have validated the head without them.
        if self._phase is not ConnectionPhase.BODY:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._refused or self._repeats_head:
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.header_bytes:
            self._refuse(431, "header_bytes")
            return
        self._enter(ConnectionPhase.BODY)
        self._idle.pop(self, None)
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        # HTTP/1.0 has no interim answers: Expect is ignored there (RFC 9110, 10.1.1).
        cycle.waiting_for_100_continue &= cycle.scope["http_version"] != "1.0"
        may_end = cycle.waiting_for_100_continue or not cycle.keep_alive
        super()._start_asgi_task(cycle, self._ending(cycle, app) if may_end else app)

    def _ending(self, cycle: RequestResponseCycle, app: Any) -> Any:
        """Return the application of a request after which the connection may end.

        A body that is still arriving is read to its end first: a client or proxy that writes into a closed connection
        gets an error in place of the answer. If the sender waits with the body (Expect), the connection ends
        immediately, since the next bytes could be the body or the next request."""

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            is_kept_back = False

            async def observed(message: Any) -> None:
                nonlocal is_kept_back
                if message["type"] == "http.response.start":
                    is_kept_back = cycle.waiting_for_100_continue and cycle.more_body
                    cycle.keep_alive &= not is_kept_back
                elif not message.get("more_body") and cycle.more_body and not (cycle.keep_alive or is_kept_back):
                    cycle.keep_alive = self._ends_with_body = True
                    self._progress = time.monotonic()
                await send(message)

            await app(scope, receive, observed)

        return answer

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused and not (self.parser.should_upgrade() and self._lengths()):
            super().on_message_complete()
            self._enter(ConnectionPhase.ANSWER)
            if self._ends_with_body:
                self._refused = True
                self.transport.close()
            elif self.cycle.response_complete:
                # The body ended after the answer: it interrupted uvicorn's keep-alive timer, which starts again.
                self._idle[self] = None
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._phase is not ConnectionPhase.BODY and self.cycle.response_complete and not self._refused:
            self._idle[self] = None

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection, without delay if its client has not read the last answer."""
        if self.transport.get_write_buffer_size():
            self.cut_off("write_timeout")
        super().timeout_keep_alive_handler()

    def sweep(self, now: float) -> None:
        """End the connection if it exceeded a time limit."""
        limits, taken_s = self._limits, now - self._since
        if self._reads_too_slowly(now):
            self.cut_off("write_timeout")
        elif self._phase is ConnectionPhase.HEAD and taken_s > limits.header_timeout_s:
            self._refuse(408, "header_timeout")
        elif self._phase is ConnectionPhase.BODY and not self.flow.read_paused:
            silent_s = now - self._progress
            if self._ends_with_body and silent_s > LAST_BODY_S:
                self.transport.close()
            elif taken_s > limits.body_timeout_s or silent_s > limits.idle_timeout_s or self._sends_too_slowly(now):
                self._refuse(408, "body_timeout")
        else:
            self._sent_mark = (now, self._body_bytes)

    def _make_room(self) -> None:
        """End an idle connection with all answers read, else the slowest sender, else this connection."""
        all_read = (one for one in self._idle if one is not self and not one.transport.get_write_buffer_size())
        if (idle := next(all_read, None)) is not None:
            idle.cut_off("connections")
            return
        now = time.monotonic()
        others = (one for one in self.connections if isinstance(one, BoundedHttp))
        rates = {one: rate for one in others if (rate := one._sent_bytes_per_s(now)) is not None}
        if rates:
            min(rates, key=rates.__getitem__)._refuse(408, "connections")
        else:
            self.cut_off("connections")

    def _sent_bytes_per_s(self, now: float) -> float | None:
        """Return the rate of the present body; None without one, in its first second, and while reading is paused."""
        taken_s = now - self._since
        if self._refused or self._phase is not ConnectionPhase.BODY or self.flow.read_paused:
            return None
        return self._body_bytes / taken_s if taken_s > SENDING_GRACE_S else None

    def _sends_too_slowly(self, now: float) -> bool:
        since, body_bytes = self._sent_mark
        if self._body_bytes - body_bytes >= LEAST_SENT_BYTES_PER_S * (now - since):
            self._sent_mark = (now, self._body_bytes)
            return False
        return now - since > SLOW_SENDING_S

    def _reads_too_slowly(self, now: float) -> bool:
        size = self.transport.get_write_buffer_size()
        if not size:
            self._unread = None
        elif self._unread is None:
            self._unread = Unread(now, now, size)
        elif self._unread.fell_to(size, now):
            self._unread = Unread(self._unread.began, now, size)
        else:
            # Bytes that the answer added are no sign of reading.
            self._unread.size_bytes = max(self._unread.size_bytes, size)
            return now - self._unread.since > self._limits.write_timeout_s
        return False

    def _enter(self, phase: ConnectionPhase) -> None:
        self._phase, self._since = phase, time.monotonic()
        self._head_bytes = self._body_bytes = self._beside_body_bytes = 0
        self._sent_mark = (self._since, 0)

    def _refuse(self, status: int, bound: str) -> None:
        """Answer with an error if no answer has begun, and close."""
        if self._refused:
            return
        CUT_OFF.labels(bound).inc()
        self._refused = True
        self._idle.pop(self, None)
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_complete
        if answering:
            # The handler sees a disconnected client.
            cycle.disconnected = True
            cycle.message_event.set()
        if self.pipeline or (answering and cycle.response_started):
            self.transport.abort()
            return
        if answering or self._phase is ConnectionPhase.HEAD:
            reason = ANSWERS[status]
            head = b"HTTP/1.1 %d %s\r\ncontent-length: %d\r\nconnection: close\r\n" % (status, reason, len(reason))
            self.transport.write(head + b"content-type: text/plain\r\n\r\n" + reason)
        self.transport.close()

    @property
    def read_since(self) -> float | None:
        """Return since when an answer is unread, at the last sweep; None without one."""
        return None if self._unread is None else self._unread.began

    @property
    def unread_bytes(self) -> int:
        """Return the unread bytes of answers."""
        return self.transport.get_write_buffer_size()

    def cut_off(self, bound: str) -> None:
        """End the connection immediately; `bound` is the exceeded limit."""
        CUT_OFF.labels(bound).inc()
        self._refused = True
        self._idle.pop(self, None)
        self.transport.abort()


def end_longest_readers(connections: Iterable[BoundedHttp], limit_bytes: int) -> None:
    """End the connections with the oldest unread answers until the others are within the limit. The newest one always
    stays."""
    reading = sorted((one for one in connections if one.read_since), key=attrgetter("read_since"))
    unread_bytes = sum(one.unread_bytes for one in reading)
    for one in reading[:-1]:
        if unread_bytes <= limit_bytes:
            return
        unread_bytes -= one.unread_bytes
        one.cut_off("unread_bytes")
