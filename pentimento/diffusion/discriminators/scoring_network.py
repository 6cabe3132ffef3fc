"""Define a discriminator's network, independently of the library that built it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint

MAX_IMAGE_SIZE_PX = 1024
MAX_PARAMETERS = 200_000_000


@dataclass(frozen=True)
class ScoringNetwork:
    """Hold an EfficientNet in two halves: `features` returns the pooled features (n, width) of pixels
    (n, 3, size, size), `logits` the classifier's logits (n, labels) for those features. `preprocessing` returns the
    pixels (3, size, size) of an RGB image; images are `image_size_px` high and wide."""

    module: torch.nn.Module
    features: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor], Tensor]
    preprocessing: Callable[[Image.Image], NDArray[np.float32]]
    image_size_px: int


def read_weights(files: "list[Path]") -> dict[str, Tensor]:
    """Return every tensor of safetensors files, floats in single precision."""
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for file in files
        for name, tensor in load_file(file).items()
    }


def check_size(directory: Path, count: int) -> None:
    """Raise BadCheckpoint for more parameters than a discriminator may have."""
    if count > MAX_PARAMETERS:
        raise BadCheckpoint(f"{directory}: has {count} parameters, more than {MAX_PARAMETERS}")


def bad_weights(directory: Path, error: Exception) -> BadCheckpoint:
    """Return the error for weights that do not fit their configuration."""
    return BadCheckpoint(f"{directory}: its weights do not fit its config.json ({' '.join(str(error).split())[:200]})")


def whole_number(path: Path, document: Mapping[str, Any], key: str, least: int, most: int) -> int:
    """Return a key's whole number within bounds. Raises BadCheckpoint with the file and the key."""
    value = document.get(key)
    if type(value) is not int or not least <= value <= most:
        raise BadCheckpoint(f"{path}: {key} must be a whole number from {least} to {most}, got {value!r:.80}")
    return value
