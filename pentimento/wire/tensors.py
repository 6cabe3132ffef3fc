"""Tensor messages as raw bytes and a dtype. NumPy has no bfloat16 and torch is too heavy for most processes, so
neither is used. A tensor that does not fit its own description is refused before its bytes are read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Protocol

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import InvalidArgument
from pentimento.wire.codec import decode, nested

MAX_RANK = 8
# Larger tensors travel by reference: bytes inside a message cost more than the step they serve.
MAX_INLINE_BYTES = 4 * 1024 * 1024


class Dtype(Enum):
    """Element types by protobuf number; little-endian."""

    FLOAT32 = pb.DTYPE_FLOAT32
    FLOAT16 = pb.DTYPE_FLOAT16
    BFLOAT16 = pb.DTYPE_BFLOAT16
    INT64 = pb.DTYPE_INT64
    INT32 = pb.DTYPE_INT32
    UINT8 = pb.DTYPE_UINT8
    BOOL = pb.DTYPE_BOOL

    @property
    def item_size(self) -> int:
        """Bytes of an element."""
        return _ITEM_SIZES[self]


_ITEM_SIZES = {
    Dtype.FLOAT32: 4,
    Dtype.FLOAT16: 2,
    Dtype.BFLOAT16: 2,
    Dtype.INT64: 8,
    Dtype.INT32: 4,
    Dtype.UINT8: 1,
    Dtype.BOOL: 1,
}


@dataclass(frozen=True)
class Binding:
    """The owner of a tensor. A receiver takes only tensors with the binding that it asked for."""

    request_id: str = ""
    fencing_token: int = 0
    step_index: int = 0
    layer: str = ""
    model_digest: str = ""
    stream_epoch: int = 0


UNBOUND = Binding()


class DeviceBytes(Protocol):
    """Bytes in a device's memory: a torch tensor that nothing here reads."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> "DeviceBytes": ...


@dataclass(frozen=True)
class WireTensor:
    """A tensor as it travels: row-major elements, perhaps in memory shared with its sender. Raises InvalidArgument when
    bytes and dims disagree: a value of it is always sound."""

    dtype: Dtype
    dims: tuple[int, ...]
    data: bytes | memoryview | DeviceBytes = field(repr=False)
    binding: Binding = UNBOUND

    def __post_init__(self) -> None:
        expected = size_of(self.dtype, self.dims)
        if len(self.data) != expected:
            wanted = f"{expected} bytes for {self.dtype.name.lower()} {list(self.dims)}"
            raise InvalidArgument.of("tensor.inline", f"must be {wanted}, got {len(self.data)}")


def host_bytes(tensor: WireTensor) -> bytes:
    """Return the tensor's bytes. Raises TypeError for one in a device's memory."""
    if not isinstance(tensor.data, bytes | memoryview):
        raise TypeError("the tensor lies in a device's memory")
    return bytes(tensor.data)


def size_of(dtype: Dtype, dims: Sequence[int]) -> int:
    """Return the bytes of a tensor. Raises InvalidArgument for dims that no tensor has."""
    return _size_of(dtype, tuple(dims))


# Called for every layer of every step, with the same few shapes.
@lru_cache(maxsize=1024)
def _size_of(dtype: Dtype, dims: tuple[int, ...]) -> int:
    if len(dims) > MAX_RANK:
        raise InvalidArgument.of("tensor.dims", f"must be at most {MAX_RANK}, got {len(dims)}")
    if any(dim < 0 for dim in dims):
        raise InvalidArgument.of("tensor.dims", f"must not be negative, got {list(dims)}")
    return math.prod(dims) * dtype.item_size


def tensor_to_proto(tensor: WireTensor) -> pb.Tensor:
    """Return the tensor as an inline message. Raises InvalidArgument for more than MAX_INLINE_BYTES."""
    if len(tensor.data) > MAX_INLINE_BYTES:
        raise InvalidArgument.of("tensor.inline", f"must be at most {MAX_INLINE_BYTES} bytes, got {len(tensor.data)}")
    message = described(tensor.dtype, tensor.dims, tensor.binding)
    message.inline = host_bytes(tensor)
    return message


def described(dtype: Dtype, dims: Sequence[int], binding: Binding) -> pb.Tensor:
    """Return a message that says everything of a tensor but where its bytes are."""
    return pb.Tensor(dtype=pb.Dtype.ValueType(dtype.value), dims=dims, binding=nested(binding, pb.TensorBinding))


def tensor_from_proto(
    message: pb.Tensor,
    *,
    dtypes: Sequence[Dtype] = tuple(Dtype),
    dims: Sequence[int] | None = None,
    binding: Binding | None = None,
) -> WireTensor:
    """Return an inline tensor of one of `dtypes`, with exactly `dims` and `binding` where those are given.

    Raises InvalidArgument naming the field; nothing is allocated for a tensor that is refused.
    """
    dtype, found = checked_description(message, dtypes, dims, binding)
    if message.WhichOneof("payload") != "inline":
        raise InvalidArgument.of("tensor.payload", f"must be inline, got {message.WhichOneof('payload') or 'nothing'}")
    if len(message.inline) > MAX_INLINE_BYTES:
        raise InvalidArgument.of(
            "tensor.inline", f"must be at most {MAX_INLINE_BYTES} bytes, got {len(message.inline)}"
        )
    return WireTensor(dtype, tuple(message.dims), message.inline, found)


def checked_description(
    message: pb.Tensor, dtypes: Sequence[Dtype], dims: Sequence[int] | None, binding: Binding | None
) -> tuple[Dtype, Binding]:
    """Return element type and binding of a message, with its bytes in any place. Raises InvalidArgument where they
    do not fit `dtypes`, `dims` and `binding`."""
    dtype = known_dtype(message.dtype, dtypes)
    if dims is not None and tuple(message.dims) != tuple(dims):
        raise InvalidArgument.of("tensor.dims", f"must be {list(dims)}, got {list(message.dims)[:MAX_RANK]}")
    found = decode(message.binding, Binding)
    if binding is not None and found != binding:
        raise InvalidArgument.of("tensor.binding", "must be that of the tensor asked for")
    return dtype, found


def known_dtype(number: int, allowed: Sequence[Dtype]) -> Dtype:
    """Return the element type of that protobuf number. Raises InvalidArgument where it is not allowed."""
    for dtype in allowed:
        if dtype.value == number:
            return dtype
    names = ", ".join(dtype.name.lower() for dtype in allowed)
    raise InvalidArgument.of("tensor.dtype", f"must be one of {names}, got {number}")
