"""Exchange frames between an index and its child process: a JSON header and raw bytes (float32 vectors). Never
pickle."""

import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

_SIZES = struct.Struct("<II")
MAX_FRAME_BYTES = 64 * 1024 * 1024
_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class Frame:
    """Hold a message between an index and its child: a header of JSON values and a body of bytes."""

    header: dict[str, Any]
    body: bytes = field(default=b"", repr=False)


class BrokenWire(Exception):
    """Report a broken connection: the other end has closed, or sends invalid frames."""


def send_frame(wire: socket.socket, frame: Frame) -> None:
    """Send a frame. Raises BrokenWire, also when the socket's timeout passes: half a frame may be out by then."""
    try:
        wire.sendall(packed(frame))
    except OSError as error:
        raise BrokenWire(str(error)) from error


def packed(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    header = _encode(frame.header).encode()
    return _SIZES.pack(len(header), len(frame.body)) + header + frame.body


def receive_frame(wire: socket.socket) -> Frame:
    """Return the next frame. Raises BrokenWire; TimeoutError when nothing came within the socket's timeout."""
    header_size, body_size = _checked_sizes(_receive(wire, _SIZES.size, first=True))
    return _frame(_receive(wire, header_size + body_size), header_size)


class FrameBuffer:
    """Collect frames from bytes that arrive in parts, without waiting."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that these bytes complete. Raises BrokenWire for invalid frames."""
        self._data += data
        frames = []
        while len(self._data) >= _SIZES.size:
            header_size, body_size = _checked_sizes(self._data[: _SIZES.size])
            end = _SIZES.size + header_size + body_size
            if len(self._data) < end:
                break
            frames.append(_frame(bytes(self._data[_SIZES.size : end]), header_size))
            del self._data[:end]
        return frames


def _checked_sizes(data: bytes | bytearray) -> tuple[int, int]:
    header_size, body_size = _SIZES.unpack(data)
    if header_size + body_size > MAX_FRAME_BYTES:
        raise BrokenWire(f"frame of {header_size + body_size} bytes")
    return header_size, body_size


def _frame(data: bytes, header_size: int) -> Frame:
    try:
        header = json.loads(data[:header_size])
    except ValueError as error:
        raise BrokenWire("header is not JSON") from error
    return Frame(header, data[header_size:])


def _receive(wire: socket.socket, size: int, first: bool = False) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            part = wire.recv(size - len(data))
        except TimeoutError:
            # Wait for the rest of a frame: its sender is alive or its death ends the connection.
            if first and not data:
                raise
            continue
        except OSError as error:
            raise BrokenWire(str(error)) from error
        if not part:
            raise BrokenWire("closed")
        data += part
    return bytes(data)
