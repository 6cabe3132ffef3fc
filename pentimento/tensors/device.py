"""Torch tensors in and out of what travels. Of the modules here this one and `cuda` import torch."""

import math

import torch
from torch import Tensor

from pentimento.domain.errors import InvalidArgument
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.torch_tensors import TORCH_DTYPES, WIRE_DTYPES
from pentimento.wire.tensors import Binding, DeviceBytes, WireTensor


def outgoing_tensor(tensor: Tensor, binding: Binding) -> OutgoingTensor:
    """Return a torch tensor to be sent: copied once, from its device and its strides straight to where it travels from.
    Raises KeyError for an element type that does not travel."""

    def fill(target: memoryview | DeviceBytes) -> None:
        if len(target):
            elements_over(target, tensor.dtype).view(tensor.shape).copy_(tensor.detach())

    on_host = tensor.device.type == "cpu"
    return OutgoingTensor(WIRE_DTYPES[tensor.dtype], tuple(tensor.shape), binding, fill, on_host)


def tensor_over(wire: WireTensor, *, finite: bool = True) -> Tensor:
    """Return a torch tensor over the very bytes that came, without a copy, where they are: of those in shared memory or
    in a device's, it is valid until they are acknowledged. Raises InvalidArgument for floating-point values that are
    not finite; with `finite` off values are not looked at."""
    dtype = TORCH_DTYPES[wire.dtype]
    tensor = elements_over(wire.data, dtype) if len(wire.data) else torch.empty(0, dtype=dtype)
    if finite and tensor.is_floating_point() and not all_finite(tensor):
        raise InvalidArgument.of("tensor", "must hold finite values, got NaN or an infinity")
    return tensor.view(wire.dims)


def all_finite(tensor: Tensor) -> bool:
    """Return whether a floating-point tensor has neither NaN nor an infinity."""
    if not tensor.numel():
        return True
    # Both ends pass NaN on: one pass, and no tensor of booleans, which takes ten times as long.
    lowest, highest = torch.aminmax(tensor)
    return math.isfinite(lowest) and math.isfinite(highest)


def elements_over(data: bytes | memoryview | DeviceBytes, dtype: torch.dtype) -> Tensor:
    """Return the elements in those bytes, one or more; over the very bytes where they may be written."""
    if isinstance(data, Tensor):
        return data.view(dtype)
    assert isinstance(data, bytes | memoryview)
    # Torch does not take bytes that it may not write to.
    return torch.frombuffer(bytearray(data) if isinstance(data, bytes) or data.readonly else data, dtype=dtype)
