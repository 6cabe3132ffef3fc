"""Hold tensors in host memory that a device reads fast, and reuse it for one staged model after the other."""

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)

# Alignment of each tensor's first byte: processors and devices copy whole cache lines.
_ALIGNED_BYTES = 64


def packed_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the memory that holds the tensors, each aligned."""
    return sum(map(_aligned, tensors))


def _aligned(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES


class HostMemory:
    """Allocate host memory, pinned if a CUDA device reads it. It is freed with this object."""

    def __init__(self, byte_count: int, *, is_read_by_device: bool) -> None:
        self.bytes = torch.empty(byte_count, dtype=torch.uint8)
        if not is_read_by_device:
            return
        if int(torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr(), byte_count, 0)):
            logger.warning(
                "memory for weights could not be locked: copies to the device take longer",
                extra={"reason": "NOT_LOCKED"},
            )
            return
        # The finalizer holds the bytes: they are unlocked before they are freed.
        weakref.finalize(self, _unlock, self.bytes)

    def copies(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield copies of the tensors in this memory, from its begin, with unchanged strides. They are valid for users
        of the device's current stream."""
        start = 0
        for tensor in tensors:
            elements = self.bytes[start : start + tensor.nbytes].view(tensor.dtype)
            copy = elements.as_strided(tensor.shape, tensor.stride(), elements.storage_offset())
            yield copy.copy_(tensor, non_blocking=True)
            start += _aligned(tensor)


def _unlock(locked: Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(locked.data_ptr())


class HostBuffers:
    """Lend host memory to staged networks. Memory that is given back serves the next ones: to pin memory takes as long
    as to copy it. One thread at a time."""

    def __init__(
        self,
        sizes: Sequence[int],
        best_fit: Callable[[Iterable[int], int], int | None],
        allocate: Callable[[int], HostMemory],
    ) -> None:
        """Allocate buffers of `sizes`; `best_fit` chooses one of several for a network."""
        self._sizes = sizes
        self._best_fit = best_fit
        self._allocate = allocate
        self._free: list[HostMemory] = []
        self._lent: list[HostMemory] = []

    def hold(self, network: nn.Module) -> None:
        """Move the network's tensors into one buffer. They are valid until the next `take_back`."""
        tensors = {tensor.data_ptr(): tensor for tensor in (*network.parameters(), *network.buffers())}
        memory = self._lend(packed_bytes(tensors.values()))
        copies = dict(zip(tensors, memory.copies(tensors.values()), strict=True))
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.data = copies.get(tensor.data_ptr(), tensor.data)

    @property
    def byte_count(self) -> int:
        """Return the memory of all buffers."""
        return sum(len(memory.bytes) for memory in (*self._free, *self._lent))

    def take_back(self) -> None:
        """Reuse the buffers of all networks from now on: none is in use any more. Buffers that were not needed for them
        are freed."""
        self._free, self._lent = self._lent, []

    def _lend(self, byte_count: int) -> HostMemory:
        free = {len(memory.bytes): memory for memory in self._free}
        size = self._best_fit(free, byte_count)
        if size is not None:
            self._free.remove(free[size])
            memory = free[size]
        else:
            memory = self._allocate(self._best_fit(self._sizes, byte_count) or byte_count)
        self._lent.append(memory)
        return memory
