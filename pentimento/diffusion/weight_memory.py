"""Compute the memory of weights: of loaded networks, and of a checkpoint before anything is loaded."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from pentimento.devices.choices import WeightStorage
from pentimento.diffusion.checkpoint import Checkpoint
from pentimento.diffusion.host_weights import is_in_host_memory
from pentimento.domain.weights import ComponentWeights
from pentimento.files.safetensors_header import TensorEntry, read_header

_AUTOENCODER = "vae"
_FP8 = "F8_E4M3"
# The name of a tensor up to the number of its layer.
_LAYER = re.compile(r"^(.*?\.\d+)\..*")
_FLOATS = ("F64", "F32", "F16", "BF16", _FP8, "F8_E5M2")


def networks_of(parts: Mapping[str, Any]) -> dict[str, torch.nn.Module]:
    """Return the networks among a model's parts."""
    return {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}


def free_weights(networks: Iterable[torch.nn.Module]) -> None:
    """Free the memory of networks that are not used again, although other objects refer to them."""
    for network in networks:
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.data = tensor.data.new_empty(0)


def component_weights(networks: Mapping[str, torch.nn.Module]) -> tuple[ComponentWeights, ...]:
    """Return the memory of a model's networks."""
    return tuple(_weights_of(name, network) for name, network in networks.items())


def _weights_of(component: str, network: torch.nn.Module) -> ComponentWeights:
    sizes: Counter[torch.dtype] = Counter()
    for tensor in (*network.parameters(), *network.buffers()):
        sizes[tensor.dtype] += math.prod(tensor.shape) * tensor.itemsize
    most = sizes.most_common(1)[0][0] if sizes else torch.float32
    # Only GGUF's blocks are stored as bytes.
    precision = "gguf" if most is torch.uint8 else str(most).removeprefix("torch.")
    return ComponentWeights(component, precision, sizes.total(), is_in_host_memory(network))


def needed_bytes(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """Return the device's memory that a checkpoint's weights will need in a precision, by the headers of its files: of
    components in host memory the largest layer, since prompts are encoded one after the other."""
    needed = component_bytes(checkpoint, dtype)
    visiting = [needed.pop(component) for component in checkpoint.components if checkpoint.stays_in_host(component)]
    return sum(needed.values()) + max(visiting, default=0)


def component_bytes(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, int]:
    """Return the memory of each component's weights in a precision, by the headers of its files."""
    return {component: _needed_by(checkpoint, component, dtype) for component in checkpoint.components}


def _needed_by(checkpoint: Checkpoint, component: str, dtype: torch.dtype) -> int:
    file = checkpoint.single_file
    if component in checkpoint.held and file is not None:
        if file.suffix != ".safetensors":
            return file.stat().st_size
        prefix = checkpoint.held[component]
        found = read_header(file).tensors.items()
        entries = {name.removeprefix(prefix): entry for name, entry in found if name.startswith(prefix)}
        return _bytes_in(checkpoint, component, entries, dtype)
    variants: dict[str, dict[str, TensorEntry]] = {}
    for path in checkpoint.component_files(component):
        if path.suffix == ".safetensors":
            variants.setdefault(_variant(path), {}).update(read_header(path).tensors)
    return max((_bytes_in(checkpoint, component, entries, dtype) for entries in variants.values()), default=0)


def _variant(path: Path) -> str:
    """Return the variant of a file: of `model.fp16-00001-of-00002.safetensors` fp16."""
    _, _, rest = path.name.removesuffix(".safetensors").partition(".")
    return rest.partition("-")[0]


def _bytes_in(checkpoint: Checkpoint, component: str, entries: Mapping[str, TensorEntry], dtype: torch.dtype) -> int:
    entries = {name: entry for name, entry in entries.items() if entry.dtype in _FLOATS}
    values: Counter[str] = Counter()
    for entry in entries.values():
        values[entry.dtype] += math.prod(entry.shape)
    is_fp8 = bool(values) and values.most_common(1)[0][0] == _FP8
    packs = is_fp8 if checkpoint.storage is WeightStorage.AUTO else checkpoint.storage is not WeightStorage.FULL
    packs = packs and component != _AUTOENCODER
    sizes: Counter[str] = Counter()
    for name, entry in entries.items():
        size = math.prod(entry.shape) * (1 if packs and len(entry.shape) > 1 else dtype.itemsize)
        sizes[_LAYER.sub(r"\1", name) if checkpoint.stays_in_host(component) else ""] += size
    return max(sizes.values(), default=0)
