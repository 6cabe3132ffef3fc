"""Which ControlNets this replica can serve, from a registry of models on its disk."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from pentimento.diffusion.controlnets import load_controlnet
from pentimento.domain.adapters import AdapterKind
from pentimento.domain.errors import InvalidArgument
from pentimento.files.adapter_registry import read_adapters
from services.controlnet_svc.residency.shelf import ShelvedNetwork


def shelved_networks(registry: Path, device: torch.device, dtype: torch.dtype) -> Mapping[str, ShelvedNetwork]:
    """Return the registry's ControlNets by name; nothing is loaded yet. Raises InvalidArgument for a registry without
    any, and what is wrong with one."""
    found = {
        name: ShelvedNetwork(
            registered.adapter,
            weight_bytes(registered.directory, dtype),
            partial(load_controlnet, registered.directory, device, dtype, registered.adapter.digest),
        )
        for name, registered in read_adapters(registry).items()
        if registered.adapter.kind is AdapterKind.CONTROLNET
    }
    if not found:
        raise InvalidArgument.of("controlnets", f"{registry} must name a ControlNet at least")
    return found


def weight_bytes(directory: Path, dtype: torch.dtype) -> int:
    """Return what weights stored in single precision take in `dtype`; more than that for those stored in half."""
    stored = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    return stored * dtype.itemsize // torch.float32.itemsize if dtype.itemsize < 4 else stored
