"""Train classifiers to compare with the shipped discriminator: of its size, with the heavy model's images as real
(DiffServe, section 4.4: *with fake*); the shipped one is trained with ground truth.

They train on the training prompts' images only, and are cached in a folder by their training inputs.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import (
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from zoo.drawing.dataset import as_pixels
from zoo.drawing.scenes import IMAGE_SIZE
from zoo.evaluate.calibration import margins
from zoo.evaluate.estimates import Array
from zoo.export.prompt_head import HEAVY_STEPS
from zoo.train.augmentation import noisy
from zoo.train.discriminator import LABELS, PIXEL_NOISE, SHIFT_PX, make_discriminator

_LABELS = {"id2label": dict(enumerate(LABELS)), "label2id": {label: number for number, label in enumerate(LABELS)}}


@dataclass(frozen=True)
class NetworkPlan:
    """Set a network's training; minibatches have the same number of images of either model."""

    steps: int = 150
    batch: int = 32
    peak_rate: float = 2.0e-3
    weight_decay: float = 0.05
    seed: int = 0


def make_resnet() -> PreTrainedModel:
    """Return a ResNet of basic blocks with the shipped discriminator's number of weights (0.28 M)."""
    return ResNetForImageClassification(
        ResNetConfig(embedding_size=20, hidden_sizes=[20, 40, 80], depths=[2, 2, 2], layer_type="basic", **_LABELS)
    )


def make_vit() -> PreTrainedModel:
    """Return a vision transformer over 64 patches, of a sixth more weights."""
    return ViTForImageClassification(
        ViTConfig(
            image_size=IMAGE_SIZE,
            patch_size=8,
            hidden_size=96,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=192,
            **_LABELS,
        )
    )


NETWORKS: Mapping[str, Callable[[], PreTrainedModel]] = {
    "ResNet, heavy as real": make_resnet,
    "ViT, heavy as real": make_vit,
    "EfficientNet, heavy as real": make_discriminator,
}


def trained_network(name: str, light: Tensor, heavy: Tensor, folder: Path, plan: NetworkPlan) -> PreTrainedModel:
    """Return a network that separates heavy's images from light's, uint8 (n, 3, height, width) each, training it if the
    folder has none with these inputs."""
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        network = NETWORKS[name]()
        path = folder / f"{_digest(name, light, heavy, plan)}.safetensors"
        if path.is_file():
            network.load_state_dict(load_file(path))
        else:
            _train(network, light, heavy, plan)
            folder.mkdir(parents=True, exist_ok=True)
            save_file(network.state_dict(), path)
    return network.eval()


def real_margins(network: PreTrainedModel, images: Tensor) -> Array:
    """Return by image the logit of 'real' less that of 'generated'."""
    return np.asarray(margins(network, as_pixels(images)).numpy())


def _digest(name: str, light: Tensor, heavy: Tensor, plan: NetworkPlan) -> str:
    told = json.dumps([name, asdict(plan), HEAVY_STEPS], sort_keys=True).encode()
    found = hashlib.sha256(told)
    for images in (light, heavy):
        found.update(images.contiguous().numpy().tobytes())
    return found.hexdigest()[:24]


def _train(network: PreTrainedModel, light: Tensor, heavy: Tensor, plan: NetworkPlan) -> None:
    generator = torch.Generator().manual_seed(plan.seed)
    optimiser = torch.optim.AdamW(network.parameters(), plan.peak_rate, weight_decay=plan.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, plan.peak_rate, total_steps=plan.steps)
    wanted = torch.arange(2).repeat_interleave(plan.batch // 2)  # an index into LABELS: heavy is real
    network.train()
    for _ in range(plan.steps):
        rows = torch.randint(len(light), (2, plan.batch // 2), generator=generator)
        pixels = _moved(as_pixels(torch.cat([light[rows[0]], heavy[rows[1]]])), generator)
        optimiser.zero_grad()
        functional.cross_entropy(network(pixel_values=pixels).logits, wanted).backward()
        optimiser.step()
        schedule.step()


def _moved(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Shift by a few pixels and add a little noise, as for the shipped discriminator."""
    down, across = torch.randint(2 * SHIFT_PX + 1, (2,), generator=generator).tolist()
    wide = functional.pad(pixels, (SHIFT_PX,) * 4, mode="replicate")
    return noisy(wide[..., down : down + IMAGE_SIZE, across : across + IMAGE_SIZE], PIXEL_NOISE, generator)
