"""Compare scores of images with torchvision's own EfficientNets, with random weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import save_file

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.diffusion.discriminators.torchvision_networks import narrow_efficientnet

torchvision = pytest.importorskip("torchvision")
SIZE_PX = 96
STAGES = [
    {"block": block, "expand_ratio": 2, "kernel": 3, "stride": 2, "input_channels": before, "out_channels": after}
    | {"num_layers": 2}
    for block, before, after in (("fused", 8, 16), ("inverted", 16, 24))
]
LINE = {"slope": 0.7, "intercept": -0.2}


def network(architecture: str) -> Any:
    torch.manual_seed(3)
    if architecture == "efficientnet":
        found = narrow_efficientnet(STAGES, 24, 2)
    else:
        found = getattr(torchvision.models, architecture)(weights=None, num_classes=2)
    # A fresh network has variance 1 everywhere: other running statistics reveal a wrong normalisation.
    for module in found.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.05, 0.05)
            module.running_var.uniform_(0.8, 1.2)
    return found.eval()


def directory_of(folder: Path, architecture: str, /, **changed: Any) -> tuple[Path, Any]:
    """Write a discriminator's directory, and return it with the network of its weights."""
    found = network(architecture)
    save_file({name: tensor.contiguous() for name, tensor in found.state_dict().items()}, folder / "model.safetensors")
    config = {"model_type": "torchvision", "architecture": architecture, "image_size": SIZE_PX}
    if architecture == "efficientnet":
        config |= {"stages": STAGES, "last_channel": 24}
    config |= {"label2id": {"real": 0, "generated": 1}, "pentimento_calibration": LINE}
    (folder / "config.json").write_text(json.dumps(config | changed))
    steps = {"do_resize": True, "size": {"shortest_edge": SIZE_PX + 8}, "resample": 2, "do_rescale": True}
    steps |= {"crop_size": {"height": SIZE_PX, "width": SIZE_PX}, "do_center_crop": True, "do_normalize": True}
    steps |= {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    (folder / "preprocessor_config.json").write_text(json.dumps(steps))
    return folder, found


def noise_image(width_px: int, height_px: int) -> Image.Image:
    image = Image.effect_noise((width_px, height_px), 80).convert("RGB")
    ImageDraw.Draw(image).ellipse((10, 10, width_px - 30, height_px - 20), fill=(250, 30, 90))
    return image


@pytest.mark.parametrize("architecture", ["efficientnet_v2_s", "efficientnet_b0", "efficientnet"])
@pytest.mark.parametrize("size", [(96, 96), (200, 130), (77, 100)])
def test_score_equals_torchvision(tmp_path: Path, architecture: str, size: tuple[int, int]) -> None:
    directory, reference = directory_of(tmp_path, architecture)
    ours, image = open_discriminator(directory), noise_image(*size)
    # The steps that torchvision ships with its ImageNet weights.
    theirs = torchvision.transforms._presets.ImageClassification(crop_size=SIZE_PX, resize_size=SIZE_PX + 8)
    with torch.inference_mode():
        real, generated = reference(theirs(image)[None])[0].double().tolist()
    expected = torch.sigmoid(torch.tensor(LINE["slope"] * (real - generated) + LINE["intercept"])).item()

    found = ours.confidences([ours.pixels(image)])[0]

    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        ("efficientnet_b0", {"architecture": "resnet18"}, r"architecture must be one of .*got 'resnet18'"),
        ("efficientnet_b0", {"architecture": "efficientnet_b1"}, r"its weights do not fit its config\.json"),
        ("efficientnet", {"stages": []}, "stages must be a list of 1 to 16 stages"),
        ("efficientnet", {"stages": [{"block": "dense"}]}, "block of a stage must be one of fused, inverted"),
        (
            "efficientnet",
            {"stages": [STAGES[0] | {"kernel": 99}]},
            "kernel must be a whole number from 1 to 15",
        ),
        ("efficientnet", {"stages": [STAGES[0] | {"out_channels": 12}]}, "channels of a stage must be multiples of 8"),
        (
            "efficientnet",
            {"stages": [STAGES[0], STAGES[1] | {"input_channels": 8}]},
            "must be the out_channels",
        ),
        ("efficientnet", {"last_channel": 0}, "last_channel must be a whole number from 1 to 8192"),
        ("efficientnet", {"last_channel": 25}, "its weights do not fit"),
    ],
)
def test_open_discriminator_refuses_configuration(
    tmp_path: Path, kind: str, changed: dict[str, Any], said: str
) -> None:
    directory, _ = directory_of(tmp_path, kind, **changed)

    with pytest.raises(BadCheckpoint, match=said):
        open_discriminator(directory)


def test_transformers_and_diffusers_import_after_it() -> None:
    from diffusers import AutoencoderKL
    from transformers import EfficientNetForImageClassification

    assert AutoencoderKL is not None and EfficientNetForImageClassification is not None
