"""Validate and load a discriminator's directory.

The directory is in transformers' format: an `EfficientNetForImageClassification` with a label `real`, safetensors only,
and a `preprocessor_config.json`; or the same with a network of torchvision (`torchvision_networks`).
`pentimento_calibration` in its configuration may give Platt's line, which turns the classifier's log odds into a
probability. With a `prompt_head.json` the discriminator also reads prompts (`prompt_heads`).
"""

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.discriminator_files import discriminator_files
from pentimento.diffusion.discriminators import torchvision_networks, transformers_networks
from pentimento.diffusion.discriminators.prompt_heads import PromptHead, open_prompt_head
from pentimento.diffusion.discriminators.scoring_network import ScoringNetwork
from pentimento.domain.errors import FailedPrecondition


@dataclass(frozen=True)
class PictureDiscriminator:
    """Score images with a loaded discriminator. `slope` and `intercept` turn its log odds into a probability. With a
    `head` it also reads the prompt, and scores whether the image is as good as a heavy model's instead of whether it
    looks real."""

    digest: str
    network: ScoringNetwork
    real_label: int
    slope: float
    intercept: float
    device: torch.device
    head: PromptHead | None = None

    def pixels(self, image: Image.Image) -> NDArray[np.float32]:
        """Return the pixels (3, size, size) of an RGB image."""
        return self.network.preprocessing(image)

    @property
    def image_size_px(self) -> int:
        """Return height and width of the network's images."""
        return self.network.image_size_px

    @torch.inference_mode()
    def confidences(self, pixels: Sequence[NDArray[np.float32]]) -> list[float]:
        """Return the calibrated probability 0..1 that each image, as from `pixels`, is real."""
        logits = self.network.logits(self._features(pixels)).cpu().double()
        others = logits.clone()
        others[:, self.real_label] = -torch.inf
        odds = logits[:, self.real_label] - others.logsumexp(dim=1)
        found: list[float] = torch.sigmoid(self.slope * odds + self.intercept).tolist()
        return found

    @torch.inference_mode()
    def confidences_with(
        self, pixels: Sequence[NDArray[np.float32]], prompts: Sequence[NDArray[np.float32]]
    ) -> list[float]:
        """Return the calibrated probability 0..1 that each image, with its prompt's embedding, is as good as the heavy
        model's would be. Raises FailedPrecondition NO_PROMPT_HEAD without a head."""
        if self.head is None:
            raise FailedPrecondition("NO_PROMPT_HEAD", "the discriminator reads images only")
        return self.head.probabilities(self._features(pixels).cpu(), prompts)

    def _features(self, pixels: Sequence[NDArray[np.float32]]) -> Tensor:
        return self.network.features(torch.from_numpy(np.stack(pixels)).to(self.device))


CPU = torch.device("cpu")
_LOADERS: dict[object, Callable[..., ScoringNetwork]] = {
    transformers_networks.MODEL_TYPE: transformers_networks.load_transformers,
    torchvision_networks.MODEL_TYPE: torchvision_networks.load_torchvision,
}


def open_discriminator(
    directory: Path, *, accept_other_digest: bool = False, device: torch.device = CPU
) -> PictureDiscriminator:
    """Return a loaded discriminator after a trial run, in single precision; takes seconds. A head stays on the CPU.

    Raises BadCheckpoint, with the file and the key, for any other directory, FailedPrecondition MODEL_DIGEST_MISMATCH
    if its digest differs from the one in its registry.json, unless `accept_other_digest`, and TORCHVISION_MISSING for a
    network of torchvision if that is not installed.
    """
    files = discriminator_files(directory, accept_other_digest=accept_other_digest)
    path, document = files.config, files.document
    labels = _labels(path, document)
    network = _loader(path, document)(path, document, list(files.weights), files.preprocessing, len(labels))
    network.module.to(device)
    slope, intercept = _calibration(path, document)
    found = PictureDiscriminator(files.digest, network, _real_label(path, labels), slope, intercept, device)
    return _tried(directory, found, has_head=files.has_head)


def _loader(path: Path, document: Mapping[str, Any]) -> Callable[..., ScoringNetwork]:
    given = document.get("model_type")
    if not isinstance(given, str) or given not in _LOADERS:
        there = " or ".join(map(repr, _LOADERS))
        raise BadCheckpoint(f"{path}: model_type must be {there}, got {given!r:.80}")
    return _LOADERS[given]


def _tried(directory: Path, found: PictureDiscriminator, *, has_head: bool) -> PictureDiscriminator:
    size = found.image_size_px
    black = np.zeros((3, size, size), np.float32)
    if not math.isfinite(found.confidences([black])[0]):
        raise BadCheckpoint(f"{directory}: its weights give no usable confidence")
    if not has_head:
        return found
    with torch.inference_mode():
        width = found.network.features(torch.from_numpy(black[None]).to(found.device)).shape[1]
    return replace(found, head=open_prompt_head(directory, width))


def _labels(path: Path, document: Mapping[str, Any]) -> dict[str, int]:
    labels = document.get("label2id")
    if not isinstance(labels, dict) or len(labels) < 2 or not _are_numbered(labels.values()):
        raise BadCheckpoint(f"{path}: label2id must number two labels or more from 0 on, got {labels!r:.80}")
    return labels


def _are_numbered(numbers: Collection[Any]) -> bool:
    return all(type(number) is int for number in numbers) and sorted(numbers) == list(range(len(numbers)))


def _real_label(path: Path, labels: Mapping[str, int]) -> int:
    numbers = [number for label, number in labels.items() if label.lower() == "real"]
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
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
