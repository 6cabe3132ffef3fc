"""What the kinds of encoders read alike: numbers of config.json and the weights that a tower uses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, float32

from pentimento.diffusion.checkpoint import BadCheckpoint, weight_files

MAX_DIMENSION = 1 << 20


def positive(path: Path, section: Mapping[str, Any], key: str) -> int:
    """Return the whole number under `key`. Raises BadCheckpoint outside 1..MAX_DIMENSION."""
    value = section.get(key)
    if not isinstance(value, int) or not 1 <= value <= MAX_DIMENSION:
        raise BadCheckpoint(f"{path}: {key} must be between 1 and {MAX_DIMENSION}, got {value!r}")
    return value


def epsilon(path: Path, section: Mapping[str, Any]) -> float:
    """Return `layer_norm_eps`. Raises BadCheckpoint outside (0, 1)."""
    value = section.get("layer_norm_eps")
    if not isinstance(value, float) or not 0 < value < 1:
        raise BadCheckpoint(f"{path}: layer_norm_eps must be between 0 and 1, got {value!r}")
    return value


def read_weights(directory: Path) -> tuple[list[Path], dict[str, Tensor]]:
    """Return the safetensors files, headers checked, and their tensors by name. Raises BadCheckpoint without any."""
    files = weight_files(directory) if directory.is_dir() else []
    if not files:
        raise BadCheckpoint(f"{directory}: holds no safetensors file")
    return files, {name: tensor for path in files for name, tensor in load_file(path).items()}


def used_tensors(
    directory: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tensors that are used, as float32. Others (position ids, the logit scale) are left out."""
    used = {}
    for name, shape in shapes.items():
        if name not in tensors:
            raise BadCheckpoint(f"{directory}: tensor {name} is missing")
        if tuple(tensors[name].shape) != shape:
            raise BadCheckpoint(f"{directory}: tensor {name} must have shape {shape}, got {tuple(tensors[name].shape)}")
        used[name] = tensors[name].to(float32)
    return used
