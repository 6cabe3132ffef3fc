"""Lend host memory for weights, and reuse it for one load after the other.

    memory = host_buffers(is_read_by_device=False).take(10**9)
    for copy in copies(memory, tensors): ...

The first write to fresh memory takes several times as long as a copy: the kernel clears each page, and pinning memory
for a GPU takes as long again. Buffers have the sizes of the clusters of all sizes that were taken, and serve by best
fit (MLoRA, Eq. 7 to 9).
"""

import logging
import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from functools import cache
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import numpy as np
import torch
from torch import Tensor, nn

from pentimento.policies.buffer_pools import best_fit, pool_sizes

logger = logging.getLogger(__name__)

# Alignment of each tensor's first byte: processors and devices copy whole cache lines.
_ALIGNED_BYTES = 64
# Sizes of buffers (MLoRA, Eq. 8), by the most frequent of the sizes that were taken.
POOLS, _COUNTED_SIZES = 5, 64
# An idle buffer of another cluster is at most this many times as large as a request: the rest stays in memory.
_MOST_TIMES = 2


def packed_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the memory that holds the tensors, each aligned."""
    return sum(map(_aligned, tensors))


def places(memory: Tensor, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield a place in `memory`, from its begin, for each tensor, with its type and strides."""
    start = 0
    for tensor in tensors:
        elements = memory[start : start + tensor.nbytes].view(tensor.dtype)
        yield elements.as_strided(tensor.shape, tensor.stride(), elements.storage_offset())
        start += _aligned(tensor)


def copies(memory: Tensor, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield copies of the tensors in `memory`, with unchanged strides. They are valid for users of the device's current
    stream."""
    tensors = tuple(tensors)
    for place, tensor in zip(places(memory, tensors), tensors, strict=True):
        yield place.copy_(tensor, non_blocking=True)


def _aligned(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES


class HostBuffers:
    """Lend buffers of host memory, pinned if a CUDA device reads them. A buffer returns once no tensor over it is left.
    Buffers take no more memory than the most in use together. Thread-safe."""

    def __init__(self, *, is_read_by_device: bool) -> None:
        self._is_read_by_device = is_read_by_device
        self._uses: Counter[int] = Counter()
        self._idle: list[mmap] = []
        # Tensors may end on any thread, also while this one holds the lock.
        self._returned: deque[mmap] = deque()
        self._lent_bytes = self._most_lent_bytes = 0
        self._lock = threading.Lock()

    @torch.inference_mode(mode=False)  # tensors of a caller's inference mode could be changed in no other mode
    def take(self, byte_count: int) -> Tensor:
        """Return memory of that many bytes, with any content."""
        if not byte_count:
            return torch.empty(0, dtype=torch.uint8)
        with self._lock:
            self._uses[byte_count] += 1
            memory = self._fitting(byte_count)
            self._lent_bytes += len(memory)
            self._most_lent_bytes = max(self._lent_bytes, self._most_lent_bytes)
            self._bound_idle()
        numbers = np.frombuffer(memory, np.uint8, byte_count)
        weakref.finalize(numbers, self._returned.append, memory).atexit = False
        return torch.from_numpy(numbers)

    def hold(self, network: nn.Module) -> None:
        """Move the network's tensors into one buffer."""
        tensors = {tensor.data_ptr(): tensor for tensor in (*network.parameters(), *network.buffers())}
        moved = copies(self.take(packed_bytes(tensors.values())), tensors.values())
        copy_of = dict(zip(tensors, moved, strict=True))
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.data = copy_of.get(tensor.data_ptr(), tensor.data)

    @property
    def idle_bytes(self) -> int:
        """Return the memory of buffers that no tensor uses."""
        with self._lock:
            self._collect()
            return sum(map(len, self._idle))

    @property
    def lent_bytes(self) -> int:
        """Return the memory of buffers that tensors use."""
        with self._lock:
            self._collect()
            return self._lent_bytes

    def drop_idle(self) -> None:
        """Free the buffers that no tensor uses."""
        with self._lock:
            self._collect()
            self._free(len(self._idle))

    def _collect(self) -> None:
        while self._returned:
            self._idle.append(self._returned.popleft())
            self._lent_bytes -= len(self._idle[-1])

    def _fitting(self, byte_count: int) -> mmap:
        """Return an idle buffer of about the size, or else a new one of its cluster's size."""
        self._collect()
        uses = dict(self._uses.most_common(_COUNTED_SIZES)) | {byte_count: self._uses[byte_count]}
        size = best_fit(pool_sizes(uses, POOLS), byte_count)
        assert size is not None, "the size itself was counted"
        largest = max(size, _MOST_TIMES * byte_count)
        free = {len(memory): memory for memory in self._idle if len(memory) <= largest}
        if (found := best_fit(free, byte_count)) is None:
            return self._allocated(size)
        self._idle.remove(free[found])
        return free[found]

    def _bound_idle(self) -> None:
        """Free idle buffers, the longest unused first, that exceed the memory of the most in use together."""
        while self._idle and self._lent_bytes + sum(map(len, self._idle)) > self._most_lent_bytes:
            self._free(1)

    def _free(self, count: int) -> None:
        """Free the idle buffers that are unused the longest."""
        for memory in self._idle[:count]:
            if self._is_read_by_device:
                torch.cuda.cudart().cudaHostUnregister(_address(memory))
        del self._idle[:count]

    def _allocated(self, byte_count: int) -> mmap:
        memory = mmap(-1, byte_count, MAP_PRIVATE | MAP_ANONYMOUS)
        if self._is_read_by_device and int(torch.cuda.cudart().cudaHostRegister(_address(memory), byte_count, 0)):
            logger.warning(
                "memory for weights could not be locked: copies to the device take longer",
                extra={"reason": "NOT_LOCKED"},
            )
        return memory


@cache
def host_buffers(*, is_read_by_device: bool) -> HostBuffers:
    """Return the process's buffers, pinned or not."""
    return HostBuffers(is_read_by_device=is_read_by_device)


def _address(memory: mmap) -> int:
    return np.frombuffer(memory, np.uint8).ctypes.data
