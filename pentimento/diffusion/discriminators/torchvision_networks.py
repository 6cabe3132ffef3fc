"""Load torchvision's EfficientNets as discriminators; DiffServe's authors train `efficientnet_v2_s`.

torchvision has no directory format, so the format follows that of transformers: `config.json` with `model_type`
torchvision, `architecture` (the function's name), `image_size` and `label2id`; `model.safetensors` with torchvision's
names; `preprocessor_config.json`, with the steps of `torchvision.transforms.v2`. The architecture `efficientnet` has
other widths and depths than the named ones: `stages` lists its blocks, `last_channel` is the width of its features.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.discriminators.scoring_network import (
    MAX_IMAGE_SIZE_PX,
    ScoringNetwork,
    bad_weights,
    check_size,
    read_weights,
    whole_number,
)
from pentimento.diffusion.preprocessing import read_preprocessing, to_pixels
from pentimento.domain.errors import FailedPrecondition
from pentimento.torchvision_operators import is_installed

MODEL_TYPE, NARROW = "torchvision", "efficientnet"
ARCHITECTURES = (
    *(f"efficientnet_b{number}" for number in range(8)),
    *(f"efficientnet_v2_{size}" for size in "sml"),
    NARROW,
)
# Blocks of the architecture `efficientnet`: their torchvision classes, and the largest number of each key.
BLOCKS = {"fused": "FusedMBConvConfig", "inverted": "MBConvConfig"}
_STAGE_LIMITS = {
    "expand_ratio": 16,
    "kernel": 15,
    "stride": 4,
    "input_channels": 4096,
    "out_channels": 4096,
    "num_layers": 64,
}
_MAX_STAGES, _MAX_FEATURES = 16, 8192


def load_torchvision(
    path: Path, document: Mapping[str, Any], files: Sequence[Path], steps_path: Path, label_count: int
) -> ScoringNetwork:
    """Return the network that `document`, the content of `path`, describes, with the weights of `files`.

    Raises BadCheckpoint with the file and the key, and FailedPrecondition TORCHVISION_MISSING if torchvision is not
    installed.
    """
    architecture = document.get("architecture")
    if architecture not in ARCHITECTURES:
        there = ", ".join(ARCHITECTURES)
        raise BadCheckpoint(f"{path}: architecture must be one of {there}, got {architecture!r:.80}")
    size = whole_number(path, document, "image_size", 32, MAX_IMAGE_SIZE_PX)
    steps = replace(read_preprocessing(steps_path, size), rounds_crop=True)
    if not is_installed():
        raise FailedPrecondition("TORCHVISION_MISSING", f"{path}: needs torchvision, which is not installed")
    build = partial(_narrow, path, document) if architecture == NARROW else partial(named_efficientnet, architecture)
    network = _network(path.parent, build, files, label_count)
    return ScoringNetwork(
        network,
        lambda pixels: network.avgpool(network.features(pixels)).flatten(1),
        network.classifier,
        partial(to_pixels, steps=steps),
        size,
    )


def narrow_efficientnet(stages: Sequence[Mapping[str, Any]], last_channel: int, label_count: int) -> Any:
    """Return torchvision's `EfficientNet` with these stages: each stage's `block` is a key of BLOCKS, its other keys
    are the block's arguments."""
    from torchvision.models import efficientnet

    blocks = [
        getattr(efficientnet, BLOCKS[stage["block"]])(**{key: stage[key] for key in _STAGE_LIMITS}) for stage in stages
    ]
    return efficientnet.EfficientNet(
        blocks, dropout=0.2, stochastic_depth_prob=0.1, num_classes=label_count, last_channel=last_channel
    )


def _narrow(path: Path, document: Mapping[str, Any], label_count: int) -> Any:
    stages = document.get("stages")
    if not isinstance(stages, list) or not 1 <= len(stages) <= _MAX_STAGES:
        raise BadCheckpoint(f"{path}: stages must be a list of 1 to {_MAX_STAGES} stages, got {stages!r:.80}")
    for stage in stages:
        if not isinstance(stage, dict) or stage.get("block") not in BLOCKS:
            raise BadCheckpoint(f"{path}: block of a stage must be one of {', '.join(BLOCKS)}, got {stage!r:.80}")
        for key, most in _STAGE_LIMITS.items():
            whole_number(path, stage, key, 1, most)
        # torchvision rounds the channels of some blocks.
        if stage["input_channels"] % 8 or stage["out_channels"] % 8:
            raise BadCheckpoint(f"{path}: channels of a stage must be multiples of 8, got {stage!r:.160}")
    if any(after["input_channels"] != before["out_channels"] for before, after in pairwise(stages)):
        raise BadCheckpoint(f"{path}: input_channels of a stage must be the out_channels of the one before")
    return narrow_efficientnet(stages, whole_number(path, document, "last_channel", 1, _MAX_FEATURES), label_count)


def named_efficientnet(architecture: str, label_count: int) -> Any:
    """Return torchvision's untrained network of one of the named ARCHITECTURES."""
    from torchvision import models

    return getattr(models, architecture)(weights=None, num_classes=label_count)


def _network(directory: Path, build: Callable[[int], Any], files: Sequence[Path], label_count: int) -> Any:
    try:
        with torch.device("meta"):
            network = build(label_count)
        check_size(directory, sum(parameter.numel() for parameter in network.parameters()))
        network.load_state_dict(read_weights(list(files)), assign=True)
    except (RuntimeError, ValueError) as error:
        raise bad_weights(directory, error) from None
    return network.eval().to(memory_format=torch.channels_last)
