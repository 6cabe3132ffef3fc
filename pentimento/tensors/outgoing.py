"""Tensors on their way out, laid one after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pentimento.wire.tensors import Binding, DeviceBytes, Dtype, WireTensor, host_bytes, size_of

# Elements of every type begin where any processor may load them at once.
ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class OutgoingTensor:
    """A tensor to be sent. `fill` writes its `size_bytes` bytes, row-major and little-endian, into the memory that it
    is given, of the host or of a device: the one copy that is made of it."""

    dtype: Dtype
    dims: tuple[int, ...]
    binding: Binding
    fill: Callable[[memoryview | DeviceBytes], None] = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """Its bytes."""
        return size_of(self.dtype, self.dims)


def outgoing(tensor: WireTensor) -> OutgoingTensor:
    """Return a tensor whose bytes are at hand on the host, to be sent through its memory."""

    def fill(target: memoryview | DeviceBytes) -> None:
        assert isinstance(target, memoryview), "bytes on the host go through its memory"
        target[:] = host_bytes(tensor)

    return OutgoingTensor(tensor.dtype, tensor.dims, tensor.binding, fill)


@dataclass(frozen=True)
class Layout:
    """Where tensors lie: the offset of each, and the bytes of all with what is between them."""

    offsets: tuple[int, ...]
    size_bytes: int


def layout_of(sizes: Sequence[int]) -> Layout:
    """Return the layout of tensors of so many bytes, in order, each at a multiple of ALIGNMENT_BYTES."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(aligned(end))
        end = offsets[-1] + size
    return Layout(tuple(offsets), end)


def aligned(offset: int) -> int:
    """Return the next multiple of ALIGNMENT_BYTES."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def fill_all(tensors: Sequence[OutgoingTensor], layout: Layout, target: memoryview | DeviceBytes) -> None:
    """Write the tensors to their places in `target`."""
    for tensor, offset in zip(tensors, layout.offsets, strict=True):
        tensor.fill(target[offset : offset + tensor.size_bytes])
