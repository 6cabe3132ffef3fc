"""Convert torch tensors to and from tensors on the wire, in the memory that carries them."""

import math

import torch
from torch import Tensor

from pentimento.domain.errors import InvalidArgument
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.wire.tensors import UNBOUND, Binding, DeviceBytes, Dtype, WireTensor

TORCH_DTYPES = {
    Dtype.FLOAT32: torch.float32,
    Dtype.FLOAT16: torch.float16,
    Dtype.BFLOAT16: torch.bfloat16,
    Dtype.INT64: torch.int64,
    Dtype.INT32: torch.int32,
    Dtype.UINT8: torch.uint8,
    Dtype.BOOL: torch.bool,
}
WIRE_DTYPES = {value: key for key, value in TORCH_DTYPES.items()}


def outgoing_tensor(tensor: Tensor, binding: Binding) -> OutgoingTensor:
    """Return a torch tensor to send: copied once, from its device and strides directly to the transport's memory.
    Raises KeyError for an unsupported element type."""

    def fill(target: memoryview | DeviceBytes) -> None:
        if len(target):
            elements_over(target, tensor.dtype).view(tensor.shape).copy_(tensor.detach())

    on_host = tensor.device.type == "cpu"
    return OutgoingTensor(WIRE_DTYPES[tensor.dtype], tuple(tensor.shape), binding, fill, on_host)


def tensor_to_wire(tensor: Tensor, binding: Binding = UNBOUND) -> WireTensor:
    """Copy a tensor to the host for sending. Raises KeyError for an unsupported element type."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return WireTensor(WIRE_DTYPES[tensor.dtype], tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes(), binding)


def tensor_over(wire: WireTensor, *, finite: bool = True) -> Tensor:
    """Return a torch tensor over the received bytes, without a copy: in shared memory or a device's memory it is valid
    until they are acknowledged. Raises InvalidArgument for floating-point values that are not finite; with `finite` off
    values are not checked."""
    dtype = TORCH_DTYPES[wire.dtype]
    tensor = elements_over(wire.data, dtype) if len(wire.data) else torch.empty(0, dtype=dtype)
    if finite and tensor.is_floating_point() and not all_finite(tensor):
        raise InvalidArgument.of("tensor", "must hold finite values, got NaN or an infinity")
    return tensor.view(wire.dims)


def all_finite(tensor: Tensor) -> bool:
    """Return whether a floating-point tensor has neither NaN nor an infinity."""
    if not tensor.numel():
        return True
    # Minimum and maximum propagate NaN: one pass, ten times as fast as a tensor of booleans.
    lowest, highest = torch.aminmax(tensor)
    return math.isfinite(lowest) and math.isfinite(highest)


def elements_over(data: bytes | memoryview | DeviceBytes, dtype: torch.dtype) -> Tensor:
    """Return the elements in the bytes, one or more; without a copy if the bytes are writable."""
    if isinstance(data, Tensor):
        return data.view(dtype)
    assert isinstance(data, bytes | memoryview)
    # torch does not accept read-only bytes.
    return torch.frombuffer(bytearray(data) if isinstance(data, bytes) or data.readonly else data, dtype=dtype)
