"""Convert torch tensors to bytes on the wire and back, bit for bit."""

import torch
from torch import Tensor

from pentimento.domain.errors import InvalidArgument
from pentimento.wire.tensors import UNBOUND, Binding, Dtype, WireTensor, host_bytes

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


def tensor_to_wire(tensor: Tensor, binding: Binding = UNBOUND) -> WireTensor:
    """Copy a tensor to the host for sending. Raises KeyError for an unsupported element type."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return WireTensor(WIRE_DTYPES[tensor.dtype], tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes(), binding)


def tensor_from_wire(wire: WireTensor) -> Tensor:
    """Return a tensor with separate memory on the host. Raises InvalidArgument for floating-point values that are not
    finite."""
    dtype = TORCH_DTYPES[wire.dtype]
    data = bytearray(host_bytes(wire))
    tensor = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise InvalidArgument.of("tensor.inline", "must hold finite values, got NaN or an infinity")
    return tensor.reshape(wire.dims)
