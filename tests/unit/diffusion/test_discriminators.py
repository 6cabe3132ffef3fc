"""Directories of discriminators, and configurations of their preprocessing: which are taken, and why not the others."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.diffusion.preprocessing import read_preprocessing
from pentimento.domain.errors import FailedPrecondition
from tests.support.refusals import wrong_refusals
from tests.support.text_files import edit_json

SHIPPED = Path(__file__).parents[3] / "zoo" / "weights" / "tiny-discriminator"
WEIGHTS = "model.safetensors"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "discriminator"))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "resnet"}, "model_type must be 'efficientnet' or 'torchvision', got 'resnet'"),
    ({"image_size": 4096}, "image_size must be a whole number up to 1024, got 4096"),
    ({"depth_coefficient": "x"}, "depth_coefficient must be a number up to 4.0, got 'x'"),
    ({"out_channels": [1 << 20]}, "out_channels must be a whole number up to 4096"),
    ({"kernel_sizes": [3] * 17}, "kernel_sizes must be a list of at most 16"),
    ({"hidden_act": "os.system"}, "hidden_act must be one of swish, silu, relu, gelu"),
    ({"label2id": {"real": 1}}, "label2id must number two labels or more"),
    ({"label2id": {"real": 1, "generated": 1}}, "label2id must number two labels or more"),
    ({"label2id": {"good": 0, "bad": 1}}, "label2id must have one label 'real'"),
    ({"pentimento_calibration": {"intercept": float("nan")}}, "pentimento_calibration must have finite numbers"),
    ({"out_channels": [16, 24, 40, 80, 96]}, "its weights do not fit its config.json"),
]


def test_wrong_configuration_is_rejected_by_key(directory: Path) -> None:
    file = directory / "config.json"
    sound = file.read_text()

    def open_with(values: dict[str, Any]) -> None:
        file.write_text(sound)
        edit_json(file, **values)
        open_discriminator(directory)

    rows = [(values, re.escape(message)) for values, message in WRONG]

    assert wrong_refusals(BadCheckpoint, open_with, rows) == []


def with_tensors(**changes: float | None) -> Callable[[Path], None]:
    """Fill tensors of a file with a value, or leave them out."""

    def damage(path: Path) -> None:
        tensors = load_file(path)
        for name, value in changes.items():
            tensor = tensors.pop(name)
            if value is not None:
                tensors[name] = torch.full_like(tensor, value)
        save_file(tensors, path)

    return damage


def lead_out(path: Path) -> None:
    path.rename(path.parents[1] / "elsewhere.safetensors")
    path.symlink_to(path.parents[1] / "elsewhere.safetensors")


@pytest.mark.parametrize(
    ("file", "damage", "named"),
    [
        (WEIGHTS, with_tensors(**{"classifier.bias": math.nan}), "its weights give no usable confidence"),
        (WEIGHTS, with_tensors(**{"classifier.bias": None}), r"do not fit its config\.json .*classifier\.bias"),
        (WEIGHTS, lambda path: path.rename(path.with_name("pytorch_model.bin")), "holds no safetensors file"),
        (WEIGHTS, lead_out, "leads out of the checkpoint"),
        (
            "preprocessor_config.json",
            lambda path: edit_json(path, rescale_offset=True),
            "rescale_offset is not supported",
        ),
    ],
    ids=["no numbers", "a tensor less", "no safetensors", "a link", "an offset"],
)
def test_open_discriminator_refuses_directory(
    directory: Path, file: str, damage: Callable[[Path], object], named: str
) -> None:
    damage(directory / file)

    with pytest.raises(BadCheckpoint, match=named):
        open_discriminator(directory)


def test_discriminator_with_other_digest_is_rejected_unless_accepted(directory: Path) -> None:
    entry = {"name": "d", "path": "discriminator", "digest": "sha256:other"}
    (directory.parent / "registry.json").write_text(json.dumps({"models": [entry]}))

    with pytest.raises(FailedPrecondition, match=r"expected sha256:other"):
        open_discriminator(directory)
    assert open_discriminator(directory, accept_other_digest=True).image_size_px == 64


def test_without_a_calibration_the_confidence_is_the_plain_softmax(directory: Path) -> None:
    path = directory / "config.json"
    document = json.loads(path.read_text())
    del document["pentimento_calibration"]
    path.write_text(json.dumps(document))

    found = open_discriminator(directory)

    assert (found.slope, found.intercept) == (1.0, 0.0)


def test_read_preprocessing_rejects_values_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "preprocessor_config.json"
    fitting = {"size": 24, "crop_size": 24}
    documents: list[dict[str, Any]] = [
        {"crop_size": {"height": 20, "width": 24}, "size": 24},
        {"crop_size": {"height": "wide", "width": 24}},
        {"size": {"longest_edge": 24}, "crop_size": 24},
        {"do_center_crop": False, "size": {"shortest_edge": 24}},
        {"size": {"shortest_edge": 1_000_000}, "crop_size": 24},
        {"size": {"height": 24, "width": 1_000_000}, "crop_size": 24},
        {**fitting, "size": 0},
        {**fitting, "image_mean": "none"},
        {**fitting, "resample": 9},
        {**fitting, "rescale_factor": float("inf")},
        {**fitting, "image_mean": [0.5, 0.5]},
        {**fitting, "image_std": [0.5, 0.0, 0.5]},
    ]
    for document in documents:
        path.write_text(json.dumps(document))
        with pytest.raises(BadCheckpoint, match=r"preprocessor_config\.json"):
            read_preprocessing(path, 24)
