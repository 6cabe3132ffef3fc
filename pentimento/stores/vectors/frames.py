"""The wire between an index and its child process: a JSON header beside raw bytes (float32 vectors). Never pickle."""

import json
import select
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

_SIZES = struct.Struct("<II")
MAX_FRAME_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Frame:
    """A message between an index and its child: a header of JSON values and a body of bytes."""

    header: dict[str, Any]
    body: bytes = field(default=b"", repr=False)


class BrokenWire(Exception):
    """The connection is broken: the other end is gone, or what it sends are not frames."""


def send_frame(wire: socket.socket, frame: Frame) -> None:
    """Send a frame. Raises BrokenWire, also when the socket's timeout passes: half a frame may be out by then."""
    header = json.dumps(frame.header, separators=(",", ":")).encode()
    try:
        wire.sendall(_SIZES.pack(len(header), len(frame.body)) + header + frame.body)
    except OSError as error:
        raise BrokenWire(str(error)) from error


def takes_at_once(wire: socket.socket) -> bool:
    """Return whether a small frame can be sent without waiting: a socket that can be written to has most of its buffer
    free."""
    poll = select.poll()
    try:
        poll.register(wire, select.POLLOUT)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        # Closed meanwhile.
        return False


def receive_frame(wire: socket.socket) -> Frame:
    """Return the next frame. Raises BrokenWire; TimeoutError when nothing came within the socket's timeout."""
    header_size, body_size = _SIZES.unpack(_receive(wire, _SIZES.size, first=True))
    if header_size + body_size > MAX_FRAME_BYTES:
        raise BrokenWire(f"frame of {header_size + body_size} bytes")
    try:
        header = json.loads(_receive(wire, header_size))
    except ValueError as error:
        raise BrokenWire("header is not JSON") from error
    return Frame(header, _receive(wire, body_size))


def _receive(wire: socket.socket, size: int, first: bool = False) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            part = wire.recv(size - len(data))
        except TimeoutError:
            # A frame under way is waited for: its sender is alive or its death ends the connection.
            if first and not data:
                raise
            continue
        except OSError as error:
            raise BrokenWire(str(error)) from error
        if not part:
            raise BrokenWire("closed")
        data += part
    return bytes(data)
