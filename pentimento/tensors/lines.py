"""A line between two processes of one host: a pair of FIFOs in the directory of shared memory, for messages of a few
hundred bytes that say what lies in which slot.

A message over gRPC costs each end some wake-ups of threads and half a millisecond of processor time; one over a line is
a write and a read. The answering end of a stream makes a line under two random names, locked as regions are; the asking
end opens it and takes the names away. It serves that one stream, and tells nobody when an end is gone: the stream does.
"""

import asyncio
import fcntl
import os
import secrets
import select
import stat
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from pentimento.tensors.regions import RegionDirectory, is_region_id

_LENGTH = struct.Struct("<I")
# What a FIFO takes in one piece or not at all.
MAX_MESSAGE_BYTES = select.PIPE_BUF - _LENGTH.size
_READ_BYTES = 64 * 1024
_OPEN = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class LineListener(Protocol):
    """Who hears what comes by lines, on a thread of its own. Called on any thread."""

    def listen(self, descriptor: int, hear: Callable[[], None]) -> None:
        """Call `hear` from now on when the descriptor is readable; it reads all there is."""
        ...

    def forget(self, descriptor: int) -> None:
        """Listen to it no longer; a call of `hear` may be under way. Before the descriptor is closed. Harmless
        twice."""
        ...


class LoopListener:
    """Hears on the running event loop. See `LineListener`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def listen(self, descriptor: int, hear: Callable[[], None]) -> None:
        """On the event loop only."""
        self._loop.add_reader(descriptor, hear)

    def forget(self, descriptor: int) -> None:
        """On the event loop only."""
        self._loop.remove_reader(descriptor)


@dataclass
class _Fifo:
    descriptor: int
    path: Path


class HostLine:
    """One end. `send` on any thread; `read` on one at a time."""

    def __init__(self, inward: _Fifo, outward: _Fifo) -> None:
        self._inward = inward
        self._outward = outward
        self._closed = False
        # A descriptor's number may be another file's as soon as it is closed.
        self._held = threading.Lock()
        self._rest = b""

    def fileno(self) -> int:
        """Return the descriptor that is readable when something has come."""
        return self._inward.descriptor

    def send(self, message: bytes) -> bool:
        """Write a message; False where the line is closed or full. Raises InvalidArgument for more than
        MAX_MESSAGE_BYTES."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise InvalidArgument.of("line", f"must take at most {MAX_MESSAGE_BYTES} bytes, got {len(message)}")
        with self._held:
            if self._closed:
                return False
            try:
                os.write(self._outward.descriptor, _LENGTH.pack(len(message)) + message)
            except BlockingIOError:
                return False
        return True

    def read(self) -> list[bytes]:
        """Return the messages that have come, in order; none where nothing has. Raises InvalidArgument for what no
        `send` wrote."""
        with self._held:
            if self._closed:
                return []
            try:
                self._rest += os.read(self._inward.descriptor, _READ_BYTES)
            except BlockingIOError:
                return []
        messages, begin, have = [], 0, len(self._rest)
        while have - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest, begin)
            if length > MAX_MESSAGE_BYTES:
                raise InvalidArgument.of("line", f"must carry messages of {MAX_MESSAGE_BYTES} bytes at most")
            end = begin + _LENGTH.size + length
            if end > have:
                break
            messages.append(self._rest[begin + _LENGTH.size : end])
            begin = end
        self._rest = self._rest[begin:]
        return messages

    def close(self) -> None:
        """Let go of it, and of its names where they are still there. Harmless twice."""
        with self._held:
            if self._closed:
                return
            self._closed = True
            for fifo in (self._inward, self._outward):
                os.close(fifo.descriptor)
                fifo.path.unlink(missing_ok=True)


def make_line(directory: RegionDirectory) -> tuple[HostLine, pb.Line]:
    """Return a new line's answering end, and what the other end opens it by. Raises ResourceExhausted (NO_LINE) where
    the directory takes none."""
    made: list[_Fifo] = []
    try:
        for _ in range(2):
            path = directory.path / secrets.token_hex(16)
            os.mkfifo(path, 0o600)
            made.append(_Fifo(os.open(path, _OPEN), path))
            # Before it has the lock whoever sweeps may take the name away: then nobody opens the line.
            fcntl.flock(made[-1].descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        for fifo in made:
            os.close(fifo.descriptor)
            fifo.path.unlink(missing_ok=True)
        raise ResourceExhausted("NO_LINE", f"no line could be made ({type(error).__name__})") from None
    asks, answers = made
    return HostLine(asks, answers), pb.Line(asks_id=asks.path.name, answers_id=answers.path.name)


def open_line(directory: RegionDirectory, told: pb.Line) -> HostLine:
    """Return the asking end of a line that another process made, and take its names away. Raises FailedPrecondition
    (NO_SUCH_LINE) where none of those names is there, InvalidArgument for what is no name."""
    opened: list[_Fifo] = []
    try:
        for name in (told.answers_id, told.asks_id):
            if not is_region_id(name):
                raise InvalidArgument.of("line", "must be named by 32 hexadecimal digits")
            opened.append(_opened(directory.path / name))
    except OSError:
        _let_go(opened)
        raise FailedPrecondition("NO_SUCH_LINE", "no line of that name is shared with this process") from None
    except InvalidArgument:
        _let_go(opened)
        raise
    for fifo in opened:
        fifo.path.unlink(missing_ok=True)
    return HostLine(*opened)


def _opened(path: Path) -> _Fifo:
    descriptor = os.open(path, _OPEN)
    found = os.fstat(descriptor)
    if not stat.S_ISFIFO(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise FileNotFoundError(path.name)
    return _Fifo(descriptor, path)


def _let_go(fifos: list[_Fifo]) -> None:
    for fifo in fifos:
        with suppress(OSError):
            os.close(fifo.descriptor)
