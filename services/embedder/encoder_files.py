"""Read an encoder's directory: numbers of config.json, weights (safetensors only), and the digest of all files read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from safetensors.torch import load_file
from torch import Tensor, float32

from pentimento.diffusion.checkpoint import BadCheckpoint, check_inside, digest_files, weight_files

C = TypeVar("C")
MAX_DIMENSION = 1 << 20


@dataclass(frozen=True)
class EncoderCheckpoint(Generic[C]):
    """A validated directory. `tensors` are float32 by transformers' names; `digest` covers every file that is read."""

    name: str
    directory: Path
    config: C
    tensors: Mapping[str, Tensor] = field(repr=False)
    digest: str


def digested_files(directory: Path, names: Sequence[str]) -> list[Path]:
    """Return the existing files with these names. Raises BadCheckpoint if one, or a weight file, leads out of the
    directory."""
    files = [directory / name for name in names if (directory / name).is_file()]
    check_inside(directory, [*files, *directory.glob("*.safetensors")])
    return files


def load_checkpoint(
    directory: Path, name: str, files: Sequence[Path], config: C, shapes: Mapping[str, tuple[int, ...]]
) -> EncoderCheckpoint[C]:
    """Return the checkpoint with the tensors of `shapes`, as float32. Raises BadCheckpoint, naming the first tensor
    that is missing or has another shape. Other tensors (position ids, the logit scale) are left out."""
    weights = weight_files(directory) if directory.is_dir() else []
    if not weights:
        raise BadCheckpoint(f"{directory}: holds no safetensors file")
    tensors = {name: tensor for path in weights for name, tensor in load_file(path).items()}
    digest = digest_files(directory, [*files, *weights])
    for tensor, shape in shapes.items():
        if tensor not in tensors:
            raise BadCheckpoint(f"{directory}: tensor {tensor} is missing")
        if (found := tuple(tensors[tensor].shape)) != shape:
            raise BadCheckpoint(f"{directory}: tensor {tensor} must have shape {shape}, got {found}")
    return EncoderCheckpoint(name, directory, config, {each: tensors[each].to(float32) for each in shapes}, digest)


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
