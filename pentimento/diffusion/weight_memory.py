"""Choose the files of weights and their storage, and compute the memory of weights: of loaded networks, and of a
checkpoint before anything is loaded.

Weights in host memory are copied to the device layer by layer, for the time of a layer's call, in the order of the
device's other work. diffusers' group offloading moves lists of layers only where a network has them as direct children;
text encoders of transformers have them deeper.
"""

import logging
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pentimento.devices.choices import WeightStorage
from pentimento.diffusion.allow_list import family_of
from pentimento.diffusion.checkpoint import BadCheckpoint, Checkpoint, read_json_object
from pentimento.diffusion.file_layouts import is_scale
from pentimento.domain.weights import ComponentWeights
from pentimento.files.safetensors_header import FLOATS, TensorEntry, read_header

logger = logging.getLogger(__name__)


_AUTOENCODER = "vae"
# The format's name of e4m3.
_FP8 = "F8_E4M3"
# The name of a tensor up to the number of its layer.
_LAYER = re.compile(r"^(.*?\.\d+)\..*")
_HALVES = (torch.float16, torch.bfloat16)
_WEIGHTS, _SHARD = ".safetensors", re.compile(r"-\d{5}-of-\d{5}$")
# The names of a network's files by diffusers and transformers, without variant and shards.
_STEMS = ("diffusion_pytorch_model", "model")
# Where a language model's tensors are in its files, by class: the head that predicts words and a tower for images are
# elsewhere.
_LANGUAGE_MODELS = {
    "Qwen3ForCausalLM": ("model.",),
    "Mistral3ForConditionalGeneration": ("language_model.model.", "model.language_model."),
}
_LAYER_NUMBER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class LoadedPart:
    """Select the tensors of a network that are loaded: those under one of `prefixes`, of the first `layer_count`
    layers; 0 for all layers."""

    prefixes: tuple[str, ...] = ("",)
    layer_count: int = 0

    def name(self, stored: str) -> str:
        """Return the name in the network of a tensor with that name in a file; "" for one that is not loaded."""
        name = next((stored.removeprefix(prefix) for prefix in self.prefixes if stored.startswith(prefix)), "")
        layer = _LAYER_NUMBER.match(name) if self.layer_count else None
        return "" if layer is not None and int(layer[1]) >= self.layer_count else name


WHOLE = LoadedPart()


def loaded_part(checkpoint: Checkpoint, component: str) -> LoadedPart:
    """Return the part of a component that is loaded: of a language model no more than its family reads."""
    prefixes = _LANGUAGE_MODELS.get(checkpoint.components[component].name)
    return WHOLE if prefixes is None else LoadedPart(prefixes, max(family_of(checkpoint).text_layers))


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


def weight_bytes(network: torch.nn.Module) -> int:
    """Return the memory of a network's weights."""
    return sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))


def _weights_of(component: str, network: torch.nn.Module) -> ComponentWeights:
    sizes: Counter[torch.dtype] = Counter()
    for tensor in (*network.parameters(), *network.buffers()):
        sizes[tensor.dtype] += tensor.nbytes
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
    if component in checkpoint.held and file is not None and file.suffix != _WEIGHTS:
        return file.stat().st_size
    packs = storage_of(checkpoint, component, dtype) is not WeightStorage.FULL
    sizes: Counter[str] = Counter()
    for name, entry in _loaded_entries(checkpoint, component, dtype).items():
        size = math.prod(entry.shape) * (1 if packs and len(entry.shape) > 1 else dtype.itemsize)
        sizes[_LAYER.sub(r"\1", name) if checkpoint.stays_in_host(component) else ""] += size * (entry.dtype in FLOATS)
    return max(sizes.values(), default=0)


def storage_of(checkpoint: Checkpoint, component: str, dtype: torch.dtype) -> WeightStorage:
    """Return how a component's weights are stored; AUTO follows the type of most of its values in the files."""
    if component == _AUTOENCODER:
        return WeightStorage.FULL
    if checkpoint.storage is not WeightStorage.AUTO:
        return checkpoint.storage
    entries = _loaded_entries(checkpoint, component, dtype)
    if any(map(is_scale, entries)):
        return WeightStorage.FULL  # other scales than these would round again
    counts: Counter[str] = Counter()
    for entry in entries.values():
        counts[entry.dtype] += math.prod(entry.shape)
    return WeightStorage.FP8 if counts and counts.most_common(1)[0][0] == _FP8 else WeightStorage.FULL


def _loaded_entries(checkpoint: Checkpoint, component: str, dtype: torch.dtype) -> dict[str, TensorEntry]:
    """Return the tensors that are loaded for a component, by the headers of their files; none of GGUF's."""
    file, files = checkpoint.single_file, checkpoint.component_files(component)
    if component in checkpoint.held and file is not None:
        prefix = checkpoint.held[component]
        found = read_header(file).tensors.items() if file.suffix == _WEIGHTS else ()
        return {name.removeprefix(prefix): entry for name, entry in found if name.startswith(prefix)}
    if all(path.suffix != _WEIGHTS for path in files):
        return {}
    stored = entries_of(loaded_files(checkpoint.component_directory(component), files, dtype))
    part = loaded_part(checkpoint, component)
    return {name: entry for key, entry in stored.items() if (name := part.name(key))}


def entries_of(files: Iterable[Path]) -> dict[str, TensorEntry]:
    """Return the tensors of a network's files by their headers. Raises ValueError for an unsound header, OSError."""
    return {name: entry for path in files for name, entry in read_header(path).tensors.items()}


def loaded_files(folder: Path, files: Iterable[Path], dtype: torch.dtype) -> list[Path]:
    """Return those of a folder's `files` that are loaded: a network's weights, or the shards that its index names.
    Half-precision copies, named `<stem>.fp16.safetensors`, are preferred for models in half precision, full precision
    for others. Raises BadCheckpoint if there is none."""
    named = {path.name: path for path in files}
    stems = [_SHARD.sub("", name.removesuffix(_WEIGHTS)) for name in named if name.endswith(_WEIGHTS)]
    if not stems:
        raise BadCheckpoint(f"{folder}: no safetensors file in it (pickled weights are never opened)")
    variant = _variant(folder, stems, dtype)
    for stem in _STEMS:
        if (whole := f"{stem}{variant}{_WEIGHTS}") in named:
            return [named[whole]]
        if (index := named.get(f"{stem}{_WEIGHTS}.index{variant}.json")) is not None:
            return [named[name] for name in sorted(set(read_json_object(index)["weight_map"].values()))]
    raise BadCheckpoint(f"{folder}: no file {' or '.join(f'{stem}{variant}{_WEIGHTS}' for stem in _STEMS)} in it")


def _variant(folder: Path, stems: Collection[str], dtype: torch.dtype) -> str:
    """Return the variant of the weights to load with its dot; empty for files without one."""
    variants = sorted({stem.split(".")[1] for stem in stems if "." in stem})
    is_plain_there = any("." not in stem for stem in stems)
    if not variants or (is_plain_there and not (dtype in _HALVES and "fp16" in variants)):
        return ""
    if is_plain_there:
        logger.info("%s: the fp16 weights are loaded, for a model in half precision", folder.name)
    return ".fp16" if "fp16" in variants else f".{variants[0]}"


def keep_in_host_memory(network: nn.Module, device: torch.device) -> None:
    """Run a network that is in host memory on `device` (changes it): for a GPU its memory is pinned."""
    if device.type == "cuda":
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.data = tensor.data.pin_memory()
    for layer in _layers(network):
        visit = _LayerVisit(layer, device)
        layer.register_forward_pre_hook(visit.arrive)
        layer.register_forward_hook(visit.leave, always_call=True)


def is_in_host_memory(network: nn.Module) -> bool:
    """Return whether a network's weights stay in host memory."""
    hooks = (hook for module in network.modules() for hook in module._forward_pre_hooks.values())
    return any(isinstance(getattr(hook, "__self__", None), _LayerVisit) for hook in hooks)


def _layers(network: nn.Module) -> Iterator[nn.Module]:
    """Yield modules that together hold all weights: the elements of lists, and modules without a list in them. A layer
    may read the weights of its parts without calling them."""
    for child in network.children():
        if _is_list(network) or not any(map(_is_list, child.modules())):
            yield child
        else:
            yield from _layers(child)


def _is_list(module: nn.Module) -> bool:
    # The parametrisations of a packed weight are a subclass.
    return type(module) is nn.ModuleList


class _LayerVisit:
    """Exchange a layer's weights for their copies while it is called."""

    def __init__(self, layer: nn.Module, device: torch.device) -> None:
        self._tables = [table for one in layer.modules() for table in (one._parameters, one._buffers)]
        self._device = device
        self._kept: list[dict[str, Tensor | None]] = []

    def arrive(self, *_: object) -> None:
        """Copy the weights to the device."""
        self._kept = [dict(table) for table in self._tables]
        for table in self._tables:
            table |= {name: self._copied(tensor) for name, tensor in table.items() if tensor is not None}

    def leave(self, *_: object) -> None:
        """Drop the copies."""
        for table, kept in zip(self._tables, self._kept, strict=True):
            table |= kept

    def _copied(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True, copy=True)
