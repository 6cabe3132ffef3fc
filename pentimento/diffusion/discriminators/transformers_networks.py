"""Load transformers' EfficientNets as discriminators, after validating each key of the configuration."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import EfficientNetConfig, EfficientNetForImageClassification

from pentimento.diffusion.checkpoint import BadCheckpoint, read_json_object
from pentimento.diffusion.discriminators.scoring_network import (
    MAX_IMAGE_SIZE_PX,
    ScoringNetwork,
    bad_weights,
    check_size,
    read_weights,
)
from pentimento.diffusion.preprocessing import ImagePreprocessing, read_preprocessing, to_pixels

MODEL_TYPE = "efficientnet"
# The keys of config.json that define the network. All others are ignored, as are names of code to import.
_WHOLE = {"image_size": MAX_IMAGE_SIZE_PX, "num_channels": 3, "depth_divisor": 64, "hidden_dim": 8192}
_REAL = {"width_coefficient": 4.0, "depth_coefficient": 4.0, "batch_norm_eps": 1.0, "squeeze_expansion_ratio": 1.0}
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


def load_transformers(
    path: Path, document: Mapping[str, Any], files: Sequence[Path], steps_path: Path, label_count: int
) -> ScoringNetwork:
    """Return the network that `document`, the content of `path`, describes, with the weights of `files`. Raises
    BadCheckpoint with the file and the key."""
    network = _network(path.parent, _config(path, document, label_count), files)
    size = network.config.image_size
    return ScoringNetwork(
        network,
        lambda pixels: network.efficientnet(pixel_values=pixels).pooler_output,
        lambda features: network.classifier(network.dropout(features)),
        partial(to_pixels, steps=_preprocessing(steps_path, size)),
        size,
    )


def _config(path: Path, document: Mapping[str, Any], label_count: int) -> EfficientNetConfig:
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
    return EfficientNetConfig(**chosen, num_labels=label_count)


def _number(path: Path, key: str, value: Any, most: float, *, whole: bool) -> float:
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most:
        raise BadCheckpoint(
            f"{path}: {key} must be {'a whole number' if whole else 'a number'} up to {most}, got {value!r:.80}"
        )
    return float(value) if not whole else int(value)


def _preprocessing(path: Path, size: int) -> ImagePreprocessing:
    document = read_json_object(path)
    for key in ("rescale_offset", "include_top"):
        if document.get(key):
            raise BadCheckpoint(f"{path}: {key} is not supported")
    return read_preprocessing(path, size)


def _network(directory: Path, config: EfficientNetConfig, files: Sequence[Path]) -> Any:
    try:
        with torch.device("meta"):
            network = EfficientNetForImageClassification(config)
        check_size(directory, sum(parameter.numel() for parameter in network.parameters()))
        network.load_state_dict(read_weights(list(files)), assign=True)
    except (RuntimeError, ValueError, IndexError, ZeroDivisionError) as error:
        raise bad_weights(directory, error) from None
    return network.eval().to(memory_format=torch.channels_last)
