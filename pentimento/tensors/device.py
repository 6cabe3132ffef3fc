"""Torch tensors in and out of what travels. The one module here that imports torch."""

import torch
from torch import Tensor

from pentimento.domain.errors import InvalidArgument
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.wire.tensors import Binding, WireTensor
from pentimento.wire.torch_tensors import TORCH_DTYPES, WIRE_DTYPES


def outgoing_tensor(tensor: Tensor, binding: Binding) -> OutgoingTensor:
    """Return a torch tensor to be sent: copied once, from its device and its strides straight to where it travels from.
    Raises KeyError for an element type that does not travel."""

    def fill(target: memoryview) -> None:
        if len(target):
            torch.frombuffer(target, dtype=tensor.dtype).view(tensor.shape).copy_(tensor.detach())

    return OutgoingTensor(WIRE_DTYPES[tensor.dtype], tuple(tensor.shape), binding, fill)


def tensor_over(wire: WireTensor) -> Tensor:
    """Return a torch tensor over the very bytes that came, without a copy: of those in shared memory it is valid until
    they are acknowledged. Raises InvalidArgument for floating-point values that are not finite."""
    dtype = TORCH_DTYPES[wire.dtype]
    # Torch does not take bytes that it may not write to.
    data = bytearray(wire.data) if isinstance(wire.data, bytes) or wire.data.readonly else wire.data
    tensor = torch.frombuffer(data, dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise InvalidArgument.of("tensor", "must hold finite values, got NaN or an infinity")
    return tensor.view(wire.dims)
