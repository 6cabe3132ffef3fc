"""Share memory between two processes: a file of a tmpfs directory, mapped by both.

The answering end of a stream makes the file under a random name, with all its space allocated and its lock held before
the name is visible; the asking end opens it and removes the name immediately. From then on the kernel frees the memory
with the last of the two processes, however they end. The file of a maker killed before that has no lock: the next
process that makes a region in the directory removes it.
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
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from pentimento.wire.tensors import DeviceBytes

DEFAULT_DIRECTORY = Path("/dev/shm/pentimento")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_REGION_ID = re.compile(r"[0-9a-f]{32}")
# Memory is mapped in pages: two slots never share a page.
PAGE_BYTES = mmap.PAGESIZE
MAX_REGION_BYTES = 4 << 30
_GENERATION = struct.Struct("<Q")
MARK_BYTES = _GENERATION.size
# Seconds without a stream after which a region's memory is released.
KEEP_S = 30.0
MOST_BYTES = 512 << 20
# Largest number of regions that one end looks up for the other.
MOST_OFFERED = 16


@dataclass(frozen=True)
class RegionSize:
    """Describe `slot_count` slots of `slot_size_bytes`, each on separate pages."""

    slot_size_bytes: int
    slot_count: int

    def __post_init__(self) -> None:
        if self.slot_size_bytes < 1 or self.slot_count < 1 or self.total_bytes > MAX_REGION_BYTES:
            limit = f"must be 1 slot or more of 1 byte or more, {MAX_REGION_BYTES} bytes at most"
            raise InvalidArgument.of("region", f"{limit}, got {self.slot_count} of {self.slot_size_bytes}")

    @property
    def stride_bytes(self) -> int:
        """Return the bytes from the start of a slot to the start of the next one."""
        return -(-self.slot_size_bytes // PAGE_BYTES) * PAGE_BYTES

    @property
    def total_bytes(self) -> int:
        """Return the bytes of the file."""
        return self.stride_bytes * self.slot_count


class Region(Protocol):
    """Describe slots of memory that two processes share. The first `MARK_BYTES` of each hold its mark."""

    @property
    def region_id(self) -> str:
        """Return the name that both processes use."""

    @property
    def size(self) -> RegionSize:
        """Return the number and size of the slots."""

    @property
    def transport(self) -> str:
        """Return the transport's name in metrics."""

    def slot(self, index: int) -> memoryview | DeviceBytes:
        """Return the memory of a slot, writable."""

    def mark(self, index: int, generation: int) -> None:
        """Write a generation into the slot itself, ordered after all earlier writes to it."""

    def marked(self, index: int) -> int:
        """Return the generation that is in the slot."""

    def close(self) -> None:
        """Release the region. Idempotent."""


class DeviceRegions(Protocol):
    """Describe a device's memory shared by processes of one host; `cuda` implements it."""

    def domain(self) -> str:
        """Return an identifier of the device, unique across hosts; "" if its memory cannot be shared."""

    def create(self, size: RegionSize) -> tuple[Region, pb.CudaIpcHandle]:
        """Make a region and the handle that the other end opens it with. Raises ResourceExhausted
        (NO_SHARED_MEMORY)."""

    def open(self, region_id: str, size: RegionSize, handle: pb.CudaIpcHandle) -> Region:
        """Map a region that another process made. Raises FailedPrecondition (NO_SUCH_REGION)."""


@dataclass
class SharedRegion:
    """Hold a mapped region. Tensors over its slots keep the mapping alive; `close` releases the name, the lock and, if
    no such tensor is left, the mapping. Closing is optional: a region may be made for a caller that has already
    left."""

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
        """Release the region. Idempotent."""
        self._give_up()
        # If a tensor still uses a slot, the mapping ends with the last such tensor.
        with contextlib.suppress(BufferError):
            self.memory.close()


class KeptRegions:
    """Hold the regions of ended streams for the next stream between the same two processes, newest last: making and
    mapping a region, with zeroing and page faults, costs as much as a few steps. Any thread may use it."""

    def __init__(
        self, keep_s: float = KEEP_S, most_bytes: int = MOST_BYTES, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._keep_s = keep_s
        self._most_bytes = most_bytes
        self._monotonic = monotonic
        self._held = threading.Lock()
        self._kept: dict[str, tuple[SharedRegion, float]] = {}
        self._timer: threading.Timer | None = None

    @property
    def region_ids(self) -> list[str]:
        """Return the ids of the newest regions, at most MOST_OFFERED."""
        return list(self._kept)[-MOST_OFFERED:]

    def take(self, region_ids: Sequence[str], size: RegionSize) -> SharedRegion | None:
        """Remove and return the first region of `region_ids` that is held and has that size; None if there is none."""
        with self._held:
            for region_id in region_ids[:MOST_OFFERED]:
                region, _ = self._kept.get(region_id, (None, 0.0))
                if region is not None and region.size == size:
                    del self._kept[region_id]
                    return region
        return None

    def give(self, region: SharedRegion) -> None:
        """Keep a region that is no longer read or written. Drops the oldest regions beyond `most_bytes`."""
        with self._held:
            self._kept[region.region_id] = (region, self._monotonic())
            while self._kept and sum(kept.size.total_bytes for kept, _ in self._kept.values()) > self._most_bytes:
                self._drop(next(iter(self._kept)))
            self._wind()

    def expire(self) -> None:
        """Drop the regions that were kept for `keep_s` seconds."""
        with self._held:
            now = self._monotonic()
            for region_id in [one for one, (_, since) in self._kept.items() if now - since >= self._keep_s]:
                self._drop(region_id)
            self._timer = None
            self._wind()

    def _drop(self, region_id: str) -> None:
        self._kept.pop(region_id)[0].close()

    def _wind(self) -> None:
        if self._kept and self._timer is None:
            self._timer = threading.Timer(self._keep_s, self.expire)
            self._timer.daemon = True
            self._timer.start()


class RegionDirectory:
    """Make and open regions in a directory that only processes of the same user may enter. With `device_memory` regions
    may be in a device's memory instead. `kept` holds regions of streams that ended in order."""

    def __init__(self, path: Path = DEFAULT_DIRECTORY, device_memory: DeviceRegions | None = None) -> None:
        self.path = path
        self.device_memory = device_memory
        self.kept = KeptRegions()

    def domain(self) -> str:
        """Return an identifier of this directory, unique across hosts; "" if it cannot be used."""
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
        """Make a region with all its space allocated. Raises ResourceExhausted (NO_SHARED_MEMORY) if no space is left,
        or the directory takes no file."""
        self.sweep()
        region_id = secrets.token_hex(16)
        descriptor = -1
        try:
            descriptor = os.open(self.path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            # Writing beyond a tmpfs's free space raises SIGBUS: allocating now reports missing space here.
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
            # Without a directory descriptor Python would link the symbolic link and not the file.
            os.link(f"/proc/self/fd/{descriptor}", region_id, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)

    def open(self, region_id: str, size: RegionSize) -> SharedRegion:
        """Map a region that another process made, and remove its name. Raises FailedPrecondition (NO_SUCH_REGION) if no
        region of that name and size exists or can be mapped, InvalidArgument for a malformed name."""
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
        except OSError:
            # This process has no memory left to map it.
            raise _missing() from None
        finally:
            os.close(descriptor)
        return SharedRegion(region_id, size, memory, path)

    def sweep(self) -> int:
        """Remove the regions left by processes that have exited; return their number."""
        return sum(map(_remove_if_left, self._regions()))

    def region_count(self) -> int:
        """Return the number of regions with a name."""
        return len(list(self._regions()))

    def _regions(self) -> Iterator[Path]:
        try:
            paths = list(self.path.iterdir())
        except OSError:
            return
        yield from (path for path in paths if is_region_id(path.name))


def release(region: Region, kept: KeptRegions | None) -> None:
    """Release a region that its stream no longer uses; a region in host memory is given to `kept` if that is set."""
    if kept is not None and isinstance(region, SharedRegion):
        kept.give(region)
    else:
        region.close()


def is_region_id(name: str) -> bool:
    """Return whether a name has the form of a region's or line's name, and is no path."""
    return _REGION_ID.fullmatch(name) is not None


def _unlocked(path: Path, descriptor: int) -> None:
    """Remove a region's name, and release its lock by closing its descriptor."""
    path.unlink(missing_ok=True)
    os.close(descriptor)


def _map(descriptor: int, size: RegionSize) -> mmap.mmap:
    """Map a region with all pages present, so that no step has a page fault."""
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return mmap.mmap(descriptor, size.total_bytes, flags, mmap.PROT_READ | mmap.PROT_WRITE)


def _remove_if_left(path: Path) -> bool:
    """Remove a region if its maker's lock is released, and return whether it was; a region is locked before it is
    named."""
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
