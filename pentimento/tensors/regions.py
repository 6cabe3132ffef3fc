"""Memory that two processes share: a file of a tmpfs directory, mapped by both.

The answering end of a stream makes it under a random name, with all its space allocated and its lock held before
anybody can see the name; the asking end opens it and takes the name away at once. From then on the kernel frees the
memory with the last of the two, however they end. What a maker leaves that is killed between the two moments holds no
lock: whoever makes a region next in that directory removes it.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
import stat
import struct
import weakref
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from pentimento.tensors.kept_regions import KeptRegions
from pentimento.wire.tensors import DeviceBytes

DEFAULT_DIRECTORY = Path("/dev/shm/pentimento")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_REGION_ID = re.compile(r"[0-9a-f]{32}")
# A mapping is by pages: a slot never shares one with another.
PAGE_BYTES = mmap.PAGESIZE
MAX_REGION_BYTES = 4 << 30
_GENERATION = struct.Struct("<Q")
MARK_BYTES = _GENERATION.size


@dataclass(frozen=True)
class RegionSize:
    """`slot_count` slots of `slot_size_bytes`, each on pages of its own."""

    slot_size_bytes: int
    slot_count: int

    def __post_init__(self) -> None:
        if self.slot_size_bytes < 1 or self.slot_count < 1 or self.total_bytes > MAX_REGION_BYTES:
            limit = f"must be 1 slot or more of 1 byte or more, {MAX_REGION_BYTES} bytes at most"
            raise InvalidArgument.of("region", f"{limit}, got {self.slot_count} of {self.slot_size_bytes}")

    @property
    def stride_bytes(self) -> int:
        """From the beginning of a slot to that of the next one."""
        return -(-self.slot_size_bytes // PAGE_BYTES) * PAGE_BYTES

    @property
    def total_bytes(self) -> int:
        """Of the file."""
        return self.stride_bytes * self.slot_count


class Region(Protocol):
    """Slots of memory that two processes share. The first `MARK_BYTES` of each are for its mark."""

    @property
    def region_id(self) -> str:
        """What both call it."""
        ...

    @property
    def size(self) -> RegionSize:
        """How it is divided."""
        ...

    @property
    def transport(self) -> str:
        """What travels through it, as metrics call it."""
        ...

    def slot(self, index: int) -> memoryview | DeviceBytes:
        """Return the memory of a slot, writable."""
        ...

    def mark(self, index: int, generation: int) -> None:
        """Write a generation into the slot itself, behind all that was written to it before."""
        ...

    def marked(self, index: int) -> int:
        """Return the generation that is in the slot."""
        ...

    def close(self) -> None:
        """Let go of it; twice does no harm."""
        ...


class DeviceRegions(Protocol):
    """Memory of one device that processes of its host exchange; `cuda` has it."""

    def domain(self) -> str:
        """Return what tells the device from every other one, on any host; "" where its memory cannot be shared."""
        ...

    def create(self, size: RegionSize) -> tuple[Region, pb.CudaIpcHandle]:
        """Make a region, and what the other end opens it by. Raises ResourceExhausted (NO_SHARED_MEMORY)."""
        ...

    def open(self, region_id: str, size: RegionSize, handle: pb.CudaIpcHandle) -> Region:
        """Map a region that another process made. Raises FailedPrecondition (NO_SUCH_REGION)."""
        ...


@dataclass
class SharedRegion:
    """A mapped region. Tensors over its slots keep the mapping alive; `close` gives up the name, the lock and, where no
    such tensor is left, the mapping. Nobody has to close it: one that was made for a caller who left meanwhile is
    nobody's."""

    region_id: str
    size: RegionSize
    memory: mmap.mmap = field(repr=False)
    _path: Path = field(repr=False)
    transport: ClassVar[str] = "shared_memory"
    # The maker's descriptor, which holds the lock; -1 at the other end.
    descriptor: InitVar[int] = -1
    _give_up: Callable[[], object] = field(init=False, repr=False, compare=False)

    def __post_init__(self, descriptor: int) -> None:
        is_maker = descriptor >= 0
        self._give_up = weakref.finalize(self, _unlocked, self._path, descriptor) if is_maker else lambda: None

    def slot(self, index: int) -> memoryview:
        """Return the memory of a slot, writable."""
        begin = index * self.size.stride_bytes
        return memoryview(self.memory)[begin : begin + self.size.slot_size_bytes]

    def mark(self, index: int, generation: int) -> None:
        """Write a generation into the slot itself."""
        _GENERATION.pack_into(self.slot(index), 0, generation)

    def marked(self, index: int) -> int:
        """Return the generation that is in the slot."""
        generation: int = _GENERATION.unpack_from(self.slot(index))[0]
        return generation

    def close(self) -> None:
        """Let go of it; twice does no harm."""
        self._give_up()
        # Somebody still looks at a slot: the mapping goes with the last who does.
        with contextlib.suppress(BufferError):
            self.memory.close()


class RegionDirectory:
    """Where regions are made and found. Its own processes alone may enter it. With `device_memory` they may lie in a
    device's instead. `kept` are those of streams that ended in order."""

    def __init__(self, path: Path = DEFAULT_DIRECTORY, device_memory: DeviceRegions | None = None) -> None:
        self.path = path
        self.device_memory = device_memory
        self.kept = KeptRegions()

    def domain(self) -> str:
        """Return what tells this directory from every other one, on any host; "" where it cannot be used."""
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            found = self.path.lstat()
            boot = BOOT_ID.read_text().strip()
        except OSError:
            return ""
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        if not private or found.st_uid != os.geteuid() or not os.access(self.path, os.W_OK | os.X_OK):
            return ""
        return f"{boot}:{found.st_dev}:{found.st_ino}"

    def create(self, size: RegionSize) -> SharedRegion:
        """Make a region, its space allocated. Raises ResourceExhausted (NO_SHARED_MEMORY) where there is none left, or
        the directory takes no file."""
        self.sweep()
        region_id = secrets.token_hex(16)
        descriptor = -1
        try:
            descriptor = os.open(self.path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            # Writing past what a tmpfs has is a SIGBUS: what is not there is found out here.
            os.posix_fallocate(descriptor, 0, size.total_bytes)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            memory = _map(descriptor, size)
            self._name(descriptor, region_id)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            code = errno.errorcode.get(error.errno or 0, "unknown")
            raise ResourceExhausted("NO_SHARED_MEMORY", f"no region of {size.total_bytes} bytes: {code}") from None
        return SharedRegion(region_id, size, memory, self.path / region_id, descriptor)

    def _name(self, descriptor: int, region_id: str) -> None:
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Without a directory's descriptor Python would link the link and not the file.
            os.link(f"/proc/self/fd/{descriptor}", region_id, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)

    def open(self, region_id: str, size: RegionSize) -> SharedRegion:
        """Map a region that another process made, and take its name away. Raises FailedPrecondition (NO_SUCH_REGION)
        where none of that name and size is there."""
        if not is_region_id(region_id):
            raise InvalidArgument.of("region.region_id", "must be 32 hexadecimal digits")
        path = self.path / region_id
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            raise _missing() from None
        try:
            found = os.fstat(descriptor)
            if found.st_size != size.total_bytes or found.st_uid != os.geteuid():
                raise _missing()
            memory = _map(descriptor, size)
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
        return SharedRegion(region_id, size, memory, path)

    def sweep(self) -> int:
        """Remove the regions whose makers are gone; return how many."""
        return sum(map(_remove_if_left, self._regions()))

    def region_count(self) -> int:
        """Return how many regions have a name now."""
        return len(list(self._regions()))

    def _regions(self) -> Iterator[Path]:
        try:
            paths = list(self.path.iterdir())
        except OSError:
            return
        yield from (path for path in paths if is_region_id(path.name))


def release(region: Region, kept: KeptRegions | None) -> None:
    """Let go of a region that its stream has no use for any more: to those that are `kept`, of the host's memory."""
    if kept is not None and isinstance(region, SharedRegion):
        kept.give(region)
    else:
        region.close()


def is_region_id(name: str) -> bool:
    """Return whether a name is such as regions and lines have, and no path."""
    return _REGION_ID.fullmatch(name) is not None


def _unlocked(path: Path, descriptor: int) -> None:
    """Give up a region's name, and with its descriptor its lock."""
    path.unlink(missing_ok=True)
    os.close(descriptor)


def _map(descriptor: int, size: RegionSize) -> mmap.mmap:
    """All its pages present at once: no page fault in a step."""
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return mmap.mmap(descriptor, size.total_bytes, flags, mmap.PROT_READ | mmap.PROT_WRITE)


def _remove_if_left(path: Path) -> bool:
    """True where its maker's lock is gone: a region has its lock before it has its name."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _missing() -> FailedPrecondition:
    return FailedPrecondition("NO_SUCH_REGION", "no region of that name and size is shared with this process")
