"""Discriminators of cascades: how likely a picture is to pass for a real one (DiffServe, section 3.2).

A directory as transformers writes it: an `EfficientNetForImageClassification` with a label `real`, safetensors only,
and a `preprocessor_config.json`. `pentimento_calibration` of its configuration may give Platt's line, which makes a
probability of the classifier's log odds.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import EfficientNetConfig, EfficientNetForImageClassification

from pentimento.diffusion.checkpoint import (
    BadCheckpoint,
    check_inside,
    digest_files,
    read_json_object,
    weight_files,
)
from pentimento.diffusion.model_registry import check_digest
from pentimento.diffusion.preprocessing import ImagePreprocessing, read_preprocessing, to_pixels

MAX_IMAGE_SIZE_PX = 1024
MAX_PARAMETERS = 200_000_000
# What of config.json the network is made of. Everything else is left out, as are names of code to import.
_WHOLE = {"image_size": MAX_IMAGE_SIZE_PX, "num_channels": 3, "depth_divisor": 64, "hidden_dim": 8192}
_REAL = {
    "width_coefficient": 4.0,
    "depth_coefficient": 4.0,
    "batch_norm_eps": 1.0,
    "squeeze_expansion_ratio": 1.0,
}
_LISTS = {
    "kernel_sizes": 15,
    "in_channels": 4096,
    "out_channels": 4096,
    "strides": 4,
    "num_block_repeats": 64,
    "expand_ratios": 16,
    "depthwise_padding": 64,
}
_WORDS = {"hidden_act": ("swish", "silu", "relu", "gelu"), "pooling_type": ("mean", "max")}
_MAX_STAGES = 16


@dataclass(frozen=True)
class PictureDiscriminator:
    """A loaded discriminator. `slope` and `intercept` make a probability of its log odds."""

    digest: str
    image_size_px: int
    preprocessing: ImagePreprocessing
    network: nn.Module
    real_label: int
    slope: float
    intercept: float

    def pixels(self, image: Image.Image) -> NDArray[np.float32]:
        """Return (3, size, size) of an RGB image."""
        return to_pixels(image, self.preprocessing)

    @torch.inference_mode()
    def confidences(self, pixels: Sequence[NDArray[np.float32]]) -> list[float]:
        """Return for each picture, as `pixels` gives it, the calibrated probability 0..1 that it is real."""
        logits: Tensor = self.network(pixel_values=torch.from_numpy(np.stack(pixels))).logits.double()
        others = logits.clone()
        others[:, self.real_label] = -torch.inf
        odds = logits[:, self.real_label] - others.logsumexp(dim=1)
        found: list[float] = torch.sigmoid(self.slope * odds + self.intercept).tolist()
        return found


def open_discriminator(directory: Path, *, accept_other_digest: bool = False) -> PictureDiscriminator:
    """Return a loaded and tried out discriminator, in single precision on the CPU; takes seconds.

    Raises BadCheckpoint, with the file and the key, for anything else than such a directory, and FailedPrecondition
    MODEL_DIGEST_MISMATCH for one that is not what the registry.json beside it says, unless `accept_other_digest`.
    """
    path, steps = directory / "config.json", directory / "preprocessor_config.json"
    document = read_json_object(path)
    files = weight_files(directory)
    if not files:
        raise BadCheckpoint(f"{directory}: holds no safetensors file")
    check_inside(directory, (path, steps, *files))
    digest = digest_files(directory, [path, steps, *files])
    if not accept_other_digest:
        check_digest(directory, digest, "")
    network = _network(directory, _config(path, document), files)
    size = network.config.image_size
    slope, intercept = _calibration(path, document)
    found = PictureDiscriminator(
        digest, size, _preprocessing(steps, size), network, _real_label(path, document), slope, intercept
    )
    if not math.isfinite(found.confidences([np.zeros((3, size, size), np.float32)])[0]):
        raise BadCheckpoint(f"{directory}: its weights give no usable confidence")
    return found


def _config(path: Path, document: Mapping[str, Any]) -> EfficientNetConfig:
    if document.get("model_type") != "efficientnet":
        raise BadCheckpoint(f"{path}: model_type must be 'efficientnet', got {document.get('model_type')!r}")
    chosen: dict[str, Any] = {}
    for key, most in (*_WHOLE.items(), *_REAL.items()):
        if key in document:
            chosen[key] = _number(path, key, document[key], most, whole=key in _WHOLE)
    for key, most in _LISTS.items():
        if key in document:
            values = document[key]
            if not isinstance(values, list) or len(values) > _MAX_STAGES:
                raise BadCheckpoint(
                    f"{path}: {key} must be a list of at most {_MAX_STAGES} numbers, got {values!r:.80}"
                )
            chosen[key] = [_number(path, key, value, most, whole=True) for value in values]
    for key, allowed in _WORDS.items():
        if key in document:
            if document[key] not in allowed:
                raise BadCheckpoint(f"{path}: {key} must be one of {', '.join(allowed)}, got {document[key]!r:.80}")
            chosen[key] = document[key]
    return EfficientNetConfig(**chosen, num_labels=len(_labels(path, document)))


def _number(path: Path, key: str, value: Any, most: float, *, whole: bool) -> float:
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most:
        raise BadCheckpoint(
            f"{path}: {key} must be {'a whole number' if whole else 'a number'} up to {most}, got {value!r:.80}"
        )
    return float(value) if not whole else int(value)


def _labels(path: Path, document: Mapping[str, Any]) -> dict[str, int]:
    labels = document.get("label2id")
    if not isinstance(labels, dict) or len(labels) < 2 or not _are_numbered(labels.values()):
        raise BadCheckpoint(f"{path}: label2id must number two labels or more from 0 on, got {labels!r:.80}")
    return labels


def _are_numbered(numbers: Collection[Any]) -> bool:
    return all(type(number) is int for number in numbers) and sorted(numbers) == list(range(len(numbers)))


def _real_label(path: Path, document: Mapping[str, Any]) -> int:
    numbers = [number for label, number in _labels(path, document).items() if label.lower() == "real"]
    if len(numbers) != 1:
        raise BadCheckpoint(f"{path}: label2id must have one label 'real'")
    return numbers[0]


def _calibration(path: Path, document: Mapping[str, Any]) -> tuple[float, float]:
    record = document.get("pentimento_calibration") or {}
    slope, intercept = (
        (record.get("slope", 1.0), record.get("intercept", 0.0)) if isinstance(record, dict) else (None, None)
    )
    if not _is_finite(slope) or not _is_finite(intercept):
        raise BadCheckpoint(f"{path}: pentimento_calibration must have finite numbers, got {record!r:.80}")
    return float(slope), float(intercept)


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _preprocessing(path: Path, size: int) -> ImagePreprocessing:
    document = read_json_object(path)
    for key in ("rescale_offset", "include_top"):
        if document.get(key):
            raise BadCheckpoint(f"{path}: {key} is not supported")
    return read_preprocessing(path, size)


def _network(directory: Path, config: EfficientNetConfig, files: Sequence[Path]) -> Any:
    tensors = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for file in files
        for name, tensor in load_file(file).items()
    }
    try:
        with torch.device("meta"):
            network = EfficientNetForImageClassification(config)
        count = sum(parameter.numel() for parameter in network.parameters())
        if count > MAX_PARAMETERS:
            raise BadCheckpoint(f"{directory}: has {count} parameters, more than {MAX_PARAMETERS}")
        network.load_state_dict(tensors, assign=True)
    except (RuntimeError, ValueError, IndexError, ZeroDivisionError) as error:
        raise BadCheckpoint(
            f"{directory}: its weights do not fit its config.json ({' '.join(str(error).split())[:200]})"
        ) from None
    return network.eval().to(memory_format=torch.channels_last)
