"""Edges against Canny's algorithm pixel by pixel and OpenCV's result, depth against transformers' pipeline."""

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DepthAnythingForDepthEstimation, pipeline
from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil

from lab.fixtures.checkpoints import add_keys, write_depth_model
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.controlnets.depth import DepthModel, load_depth_model
from pentimento.diffusion.controlnets.edges import edges
from pentimento.diffusion.images import pixel_image
from pentimento.domain.errors import InvalidArgument

CPU = torch.device("cpu")


def scene(height_px: int, width_px: int) -> Tensor:
    """Return waves of other lengths in each channel; their edges are lines of every direction."""
    rows, columns = np.mgrid[:height_px, :width_px]
    waves = [
        100 * np.sin(columns / (5 + place) + rows / 9) + 80 * np.cos(rows * columns / (90 + 40 * place))
        for place in range(3)
    ]
    levels = np.clip(np.stack(waves) + 128, 0, 255).astype(np.uint8)
    return torch.from_numpy(levels)[None].float() / 255.0


def canny(pixels: Tensor) -> list[list[bool]]:
    """Return the edges by loops over pixels, with the gradient's direction as an angle."""
    levels = (pixels[0] * 255.0).round().int().tolist()
    height, width = pixels.shape[2:]

    def at(channel: int, row: int, column: int) -> int:
        return int(levels[channel][min(max(row, 0), height - 1)][min(max(column, 0), width - 1)])

    def gradient(row: int, column: int) -> tuple[int, int]:
        found = []
        for channel in range(3):
            x = sum(k * (at(channel, row + d, column + 1) - at(channel, row + d, column - 1)) for d, k in KERNEL)
            y = sum(k * (at(channel, row + 1, column + d) - at(channel, row - 1, column + d)) for d, k in KERNEL)
            found.append((x, y))
        return max(found, key=lambda one: abs(one[0]) + abs(one[1]))

    gradients = {(row, column): gradient(row, column) for row in range(height) for column in range(width)}
    strength = {place: abs(x) + abs(y) for place, (x, y) in gradients.items()}

    def is_ridge(row: int, column: int) -> bool:
        x, y = gradients[row, column]
        angle = math.degrees(math.atan2(abs(y), abs(x)))
        if angle < 22.5:
            step, is_strict = (0, 1), False
        elif angle > 67.5:
            step, is_strict = (1, 0), False
        else:
            step, is_strict = (1, 1 if x * y >= 0 else -1), True
        own = strength[row, column]
        before = strength.get((row - step[0], column - step[1]), 0)
        after = strength.get((row + step[0], column + step[1]), 0)
        return own > before and (own > after if is_strict else own >= after)

    thin = {place for place in strength if strength[place] > 100 and is_ridge(*place)}
    found = {place for place in thin if strength[place] > 200}
    waiting = list(found)
    while waiting:
        row, column = waiting.pop()
        beside = {(row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1)}
        waiting += beside & thin - found
        found |= beside & thin
    return [[(row, column) in found for column in range(width)] for row in range(height)]


KERNEL = ((-1, 1), (0, 2), (1, 1))


def test_edges_equal_canny_by_loops() -> None:
    pixels = scene(48, 40)

    found = edges(pixels)

    assert found.shape == pixels.shape
    assert found[0, 0].bool().tolist() == canny(pixels)
    assert torch.equal(found[:, :1].expand_as(found), found)
    assert 0.1 < float(found.mean()) < 0.4


# cv2.Canny(scene(...), 100, 200) of OpenCV 5.0: sha256 of its bytes.
OF_OPENCV = {
    (48, 40): "798fb8627f8998d68295faa9d8d15442151cf4a4e865bba345e56ad30f98c380",
    (512, 768): "7bad3e883cacb6dfaf4d12060c224437a8d7ba417fe7147c4da257cebbefec0e",
}


@pytest.mark.parametrize("size", OF_OPENCV)
def test_edges_equal_opencv(size: tuple[int, int]) -> None:
    found = (edges(scene(*size))[0, 0] * 255).to(torch.uint8).numpy()

    assert hashlib.sha256(found.tobytes()).hexdigest() == OF_OPENCV[size]


def test_edges_follow_a_path_of_any_length() -> None:
    """A weak spiral with one strong end; its edge is one path through the whole image."""
    levels = np.full((65, 65), 100)
    row, column, step, left = 32, 32, 0, 4
    while 2 <= row < 63 and 2 <= column < 63:
        for _ in range(left):
            levels[row, column] = 130
            row, column = row + (0, 1, 0, -1)[step % 4], column + (1, 0, -1, 0)[step % 4]
        step, left = step + 1, left + 2
    weak = torch.from_numpy(np.repeat(levels[None, None], 3, axis=1)).float() / 255.0
    strong = weak.clone()
    strong[:, :, 32, 32:35] = 1.0

    assert not edges(weak).any()
    assert float(edges(strong)[:, :, :10].sum()) > 50
    assert edges(strong)[0, 0].bool().tolist() == canny(strong)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_depth_model(tmp_path_factory.mktemp("depth") / "model")


@pytest.fixture(scope="module")
def model(directory: Path) -> DepthModel:
    return load_depth_model(directory, CPU, torch.float32)


@pytest.mark.parametrize("size", [(48, 40), (32, 96)])
def test_depth_equals_that_of_transformers(directory: Path, model: DepthModel, size: tuple[int, int]) -> None:
    pixels = scene(*size)
    theirs = pipeline(
        "depth-estimation",
        model=DepthAnythingForDepthEstimation.from_pretrained(directory),
        image_processor=DPTImageProcessorPil.from_pretrained(directory),
    )(pixel_image(pixels))["depth"]

    ours = (model.depth(pixels) * 255).round().int()

    assert ours.shape == pixels.shape
    wanted = torch.from_numpy(np.array(theirs)).int().expand_as(ours)
    assert int((ours - wanted).abs().max()) <= 1
    assert len(ours.unique()) > 50


def test_depth_of_a_sliver_is_refused(model: DepthModel) -> None:
    with pytest.raises(InvalidArgument, match=r"controlnet.preprocessor: must be edges or empty .* 2 x 512 pixels"):
        model.depth(scene(512, 2))


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("config.json", {"architectures": ["ViTModel"]}, "architectures must be one of DepthAnything"),
        ("config.json", {"architectures": "DPTForDepthEstimation"}, "architectures must be one of"),
        ("config.json", {"backbone_config": "dinov2"}, "the backbone must be dinov2"),
        ("preprocessor_config.json", {"size": {"height": "28", "width": 28}}, "1 to 2048 pixels"),
        ("config.json", {"backbone_config": {"model_type": "timm_backbone"}}, "the backbone must be dinov2"),
        ("config.json", {"fusion_hidden_size": 16}, "does not load"),
        ("preprocessor_config.json", {"size": {"height": 5000, "width": 28}}, "1 to 2048 pixels"),
    ],
)
def test_invalid_depth_model_is_refused(
    tmp_path: Path, directory: Path, file: str, change: dict[str, object], words: str
) -> None:
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    add_keys(tmp_path / file, **change)

    with pytest.raises(BadCheckpoint, match=words):
        load_depth_model(tmp_path, CPU, torch.float32)
