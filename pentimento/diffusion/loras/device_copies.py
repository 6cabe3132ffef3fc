"""Copy LoRA factors and weights between a device and its host in few large pieces.

Copying hundreds of layers one by one from pageable memory takes ten times as long.
"""

import logging
import weakref
from collections.abc import Mapping

import torch
from torch import Tensor

from pentimento.diffusion.loras.lora import LowRankFactors

logger = logging.getLogger(__name__)

# Alignment of each tensor's first byte: processors and devices copy whole cache lines.
_ALIGNED_BYTES = 64


class FactorsThere:
    """Hold LoRA factors on a device in single precision. Factors of one file share one storage, which is copied
    once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: dict[int, Tensor] = {}

    def matrices(self, factors: LowRankFactors) -> tuple[Tensor, Tensor]:
        """Return up (outputs, rank) and down (rank, inputs * height * width)."""
        up, down = self._there(factors.up), self._there(factors.down)
        return up.flatten(1), down.flatten(1)

    def _there(self, tensor: Tensor) -> Tensor:
        if tensor.device == self._device or self._device.type == "cpu":
            return tensor.to(self._device, torch.float32)
        memory = tensor.untyped_storage()
        if (copy := self._copies.get(memory.data_ptr())) is None:
            whole = torch.empty(0, dtype=tensor.dtype).set_(memory)
            copy = self._copies[memory.data_ptr()] = whole.to(self._device).float()
        return copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class KeptWeights:
    """Hold copies of weights in host memory with unchanged strides, in pinned memory for a CUDA device. Copies are
    valid for users of the device's current stream."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._memories: list[_HostMemory] = []

    def keep(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights that have no copy yet."""
        new = {name: weight for name, weight in weights.items() if name not in self.by_name}
        if not new:
            return
        sizes = [-(-weight.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES for weight in new.values()]
        memory = _HostMemory(sum(sizes), is_read_by_device=next(iter(new.values())).device.type == "cuda")
        copies: dict[str, Tensor] = {}
        for part, (name, weight) in zip(memory.bytes.split(sizes), new.items(), strict=True):
            elements = part[: weight.nbytes].view(weight.dtype)
            copies[name] = elements.as_strided(weight.shape, weight.stride(), elements.storage_offset())
            copies[name].copy_(weight, non_blocking=True)
        # All or none: an incomplete copy must never be restored.
        self._memories.append(memory)
        self.by_name |= copies


class _HostMemory:
    """Allocate host memory, pinned if a CUDA device reads it. It is freed with this object."""

    def __init__(self, byte_count: int, *, is_read_by_device: bool) -> None:
        self.bytes = torch.empty(byte_count, dtype=torch.uint8)
        if not is_read_by_device:
            return
        if int(torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr(), byte_count, 0)):
            logger.warning(
                "memory for weights could not be locked: patches take longer", extra={"reason": "NOT_LOCKED"}
            )
            return
        # The finalizer holds the bytes: they are unlocked before they are freed.
        weakref.finalize(self, _unlock, self.bytes)


def _unlock(locked: Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(locked.data_ptr())
