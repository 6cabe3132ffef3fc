"""Convert torch tensors to and from tensors on the wire, in the memory that carries them. Share
regions in the memory of a CUDA device; another process of the host opens them by handle (CUDA's inter-process
communication, through PyTorch). Tensors go from one process to the other without leaving the device.

The maker's memory stays allocated while the other end has it open. Memory that a killed process had open is freed with
the maker's process."""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.regions import BOOT_ID, MARK_BYTES, RegionDirectory, RegionSize
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


@dataclass
class DeviceRegion:
    """Hold slots of one allocation, a tensor of bytes."""

    region_id: str
    size: RegionSize
    memory: Tensor = field(repr=False)
    transport: ClassVar[str] = "cuda_ipc"

    def slot(self, index: int) -> Tensor:
        """Return the memory of a slot, writable."""
        begin = index * self.size.stride_bytes
        return self.memory[begin : begin + self.size.slot_size_bytes]

    def mark(self, index: int, generation: int) -> None:
        """Write a generation into the slot itself, and wait for the device: the other end is notified by a message,
        without knowledge of this end's CUDA streams."""
        self.slot(index)[:MARK_BYTES].view(torch.int64).fill_(generation)
        if self.memory.is_cuda:
            torch.cuda.current_stream(self.memory.device).synchronize()

    def marked(self, index: int) -> int:
        """Return the generation that is in the slot."""
        return int(self.slot(index)[:MARK_BYTES].view(torch.int64).item())

    def close(self) -> None:
        """Release the region; tensors over its slots keep the memory."""
        self.memory = self.memory[:0].clone()


@dataclass(frozen=True)
class Sharing:
    """Hold the functions that convert a device's memory to a handle and back: PyTorch's, or a test's. Both raise
    RuntimeError if the device refuses."""

    share: Callable[[Tensor], pb.CudaIpcHandle]
    open: Callable[[torch.device, pb.CudaIpcHandle], Tensor]


def _share(memory: Tensor) -> pb.CudaIpcHandle:
    _, handle, size, offset, counter, counter_offset, event, sync = memory.untyped_storage()._share_cuda_()
    return pb.CudaIpcHandle(
        handle=handle,
        offset_bytes=offset,
        size_bytes=size,
        counter_handle=counter,
        counter_offset=counter_offset,
        event_handle=event,
        event_sync_required=sync,
    )


def _open(device: torch.device, told: pb.CudaIpcHandle) -> Tensor:
    storage = torch.UntypedStorage._new_shared_cuda(
        device.index,
        told.handle,
        told.size_bytes,
        told.offset_bytes,
        told.counter_handle,
        told.counter_offset,
        told.event_handle,
        told.event_sync_required,
    )
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


class CudaMemory:
    """Implement `DeviceRegions` for a CUDA device."""

    def __init__(self, device: torch.device, domain: str, sharing: Sharing) -> None:
        self._device = device
        self._domain = domain
        self._sharing = sharing

    def domain(self) -> str:
        """Return the host's boot id and the device's own id."""
        return self._domain

    def create(self, size: RegionSize) -> tuple[DeviceRegion, pb.CudaIpcHandle]:
        """Make a region and the handle that the other end opens it with. Raises ResourceExhausted (NO_SHARED_MEMORY) if
        the device has no room, or does not share memory."""
        try:
            memory = torch.zeros(size.total_bytes, dtype=torch.uint8, device=self._device)
            handle = self._sharing.share(memory)
        except RuntimeError as error:
            raise ResourceExhausted("NO_SHARED_MEMORY", f"no {size.total_bytes} bytes on {self._device}") from error
        return DeviceRegion(secrets.token_hex(16), size, memory), handle

    def open(self, region_id: str, size: RegionSize, handle: pb.CudaIpcHandle) -> DeviceRegion:
        """Map a region that another process made. Raises FailedPrecondition (NO_SUCH_REGION) for an invalid handle,
        InvalidArgument for another size."""
        if handle.size_bytes != size.total_bytes:
            limit = f"must be {size.total_bytes} bytes, got {handle.size_bytes}"
            raise InvalidArgument.of("region.cuda_ipc.size_bytes", limit)
        try:
            memory = self._sharing.open(self._device, handle)
        except RuntimeError as error:
            raise FailedPrecondition("NO_SUCH_REGION", "no region of that handle is open to this process") from error
        return DeviceRegion(region_id, size, memory)


def cuda_memory(device: torch.device) -> CudaMemory | None:
    """Return the shared memory of a CUDA `device`; None for any other device."""
    if device.type != "cuda":
        return None
    at = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    number = torch.cuda.get_device_properties(at).uuid
    return CudaMemory(at, f"{BOOT_ID.read_text().strip()}:{number}", Sharing(_share, _open))


def region_directory(path: str, device: torch.device | None = None) -> RegionDirectory | None:
    """Return the directory of that path, None for an empty path; with a CUDA device, regions may be in its memory."""
    return RegionDirectory(Path(path), None if device is None else cuda_memory(device)) if path else None
