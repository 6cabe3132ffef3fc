"""Lay out tensors to send, one after the other, and write them."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache

from pentimento.wire.tensors import Binding, DeviceBytes, Dtype, WireTensor, host_bytes, size_of

# Aligns elements of every type for loads on any processor.
ALIGNMENT_BYTES = 64
# From this size on one processor does not saturate the memory bandwidth: two share the copy.
SHARED_FILL_BYTES = 4 << 20
_HELPER = ThreadPoolExecutor(1, "tensor-copy")


@dataclass(frozen=True)
class OutgoingTensor:
    """Describe a tensor to send. `fill` writes its `size_bytes` bytes, row-major and little-endian, into the given
    memory of the host or a device: the only copy made. With `on_host` it reads only host memory, may run on any thread,
    and releases the interpreter lock."""

    dtype: Dtype
    dims: tuple[int, ...]
    binding: Binding
    fill: Callable[[memoryview | DeviceBytes], None] = field(repr=False)
    on_host: bool = False

    @property
    def size_bytes(self) -> int:
        """Return the tensor's size in bytes."""
        return size_of(self.dtype, self.dims)


def outgoing(tensor: WireTensor) -> OutgoingTensor:
    """Return a tensor to send with bytes in host memory, through host memory."""

    def fill(target: memoryview | DeviceBytes) -> None:
        assert isinstance(target, memoryview), "bytes on the host go through its memory"
        target[:] = host_bytes(tensor)

    return OutgoingTensor(tensor.dtype, tensor.dims, tensor.binding, fill)


@dataclass(frozen=True)
class Layout:
    """Hold the layout of tensors: the offset of each, and the total bytes, padding included."""

    offsets: tuple[int, ...]
    size_bytes: int


def layout_of(sizes: Sequence[int]) -> Layout:
    """Return the layout of tensors of `sizes` bytes, in order, each at a multiple of ALIGNMENT_BYTES."""
    return _layout_of(tuple(sizes))


@lru_cache(maxsize=64)
def _layout_of(sizes: tuple[int, ...]) -> Layout:
    """Return the layout, cached because all steps of a stream have the same one."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(aligned(end))
        end = offsets[-1] + size
    return Layout(tuple(offsets), end)


def aligned(offset: int) -> int:
    """Return the next multiple of ALIGNMENT_BYTES."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def fill_all(tensors: Sequence[OutgoingTensor], layout: Layout, target: memoryview | DeviceBytes) -> None:
    """Write the tensors at their offsets in `target`; large host tensors on two threads if the process may use two
    processors."""
    parts = list(zip(tensors, layout.offsets, strict=True))
    shared = layout.size_bytes >= SHARED_FILL_BYTES and all(tensor.on_host for tensor in tensors)
    if not shared or len(os.sched_getaffinity(0)) < 2:
        return _fill(parts, target)
    own, given_away = _halves(parts)
    helping = _HELPER.submit(_fill, given_away, target)
    try:
        _fill(own, target)
    finally:
        # No thread writes to the target after this returns, even on an error.
        if helping.cancel():
            _fill(given_away, target)
        else:
            helping.result()


Part = tuple[OutgoingTensor, int]


def _fill(parts: Sequence[Part], target: memoryview | DeviceBytes) -> None:
    for tensor, offset in parts:
        tensor.fill(target[offset : offset + tensor.size_bytes])


def _halves(parts: Sequence[Part]) -> tuple[list[Part], list[Part]]:
    """Split the parts into two halves of about the same size in bytes."""
    halves: tuple[list[Part], list[Part]] = ([], [])
    sizes = [0, 0]
    for part in sorted(parts, key=lambda one: -one[0].size_bytes):
        place = 0 if sizes[0] <= sizes[1] else 1
        halves[place].append(part)
        sizes[place] += part[0].size_bytes
    return halves
