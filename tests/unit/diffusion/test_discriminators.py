"""Which directories are taken for a discriminator, and what is said of the others."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.domain.errors import FailedPrecondition

SHIPPED = Path(__file__).parents[3] / "zoo" / "weights" / "tiny-discriminator"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "discriminator"))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "resnet"}, "model_type must be 'efficientnet' or 'torchvision', got 'resnet'"),
        ({"image_size": 4096}, "image_size must be a whole number up to 1024, got 4096"),
        ({"depth_coefficient": "x"}, "depth_coefficient must be a number up to 4.0, got 'x'"),
        ({"depth_coefficient": float("inf")}, "depth_coefficient must be a number up to"),
        ({"out_channels": [1 << 20]}, "out_channels must be a whole number up to 4096"),
        ({"kernel_sizes": [3] * 17}, "kernel_sizes must be a list of at most 16"),
        ({"hidden_act": "os.system"}, "hidden_act must be one of swish, silu, relu, gelu"),
        ({"label2id": {"real": 1}}, "label2id must number two labels or more"),
        ({"label2id": {"real": 1, "generated": 1}}, "label2id must number two labels or more"),
        ({"label2id": {"good": 0, "bad": 1}}, "label2id must have one label 'real'"),
        ({"pentimento_calibration": {"slope": "steep"}}, "pentimento_calibration must have finite numbers"),
        ({"pentimento_calibration": {"intercept": float("nan")}}, "pentimento_calibration must have finite numbers"),
        ({"out_channels": [16, 24, 40, 80, 96]}, "its weights do not fit its config.json"),
        ({"strides": [1]}, "its weights do not fit its config.json"),
    ],
)
def test_what_a_configuration_may_not_say_is_named(directory: Path, values: dict[str, Any], message: str) -> None:
    change(directory / "config.json", **values)

    with pytest.raises(BadCheckpoint) as refused:
        open_discriminator(directory)

    assert message in str(refused.value)


@pytest.mark.parametrize("key", ["rescale_offset", "include_top"])
def test_a_step_of_preprocessing_that_is_not_done_here_is_refused(directory: Path, key: str) -> None:
    change(directory / "preprocessor_config.json", **{key: True})

    with pytest.raises(BadCheckpoint, match=f"{key} is not supported"):
        open_discriminator(directory)


def test_weights_that_are_no_numbers_are_refused(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors["classifier.bias"] = torch.full_like(tensors["classifier.bias"], float("nan"))
    save_file(tensors, path)

    with pytest.raises(BadCheckpoint, match="its weights give no usable confidence"):
        open_discriminator(directory)


def test_a_missing_tensor_is_refused(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    del tensors["classifier.bias"]
    save_file(tensors, path)

    with pytest.raises(BadCheckpoint, match=r"do not fit its config\.json .*classifier\.bias"):
        open_discriminator(directory)


def test_a_directory_without_safetensors_is_refused_whatever_else_it_holds(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")

    with pytest.raises(BadCheckpoint, match="holds no safetensors file"):
        open_discriminator(directory)


def test_a_file_that_leads_out_of_the_directory_is_refused(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.rename(directory.parent / "elsewhere.safetensors")
    path.symlink_to(directory.parent / "elsewhere.safetensors")

    with pytest.raises(BadCheckpoint, match="leads out of the checkpoint"):
        open_discriminator(directory)


def test_another_one_than_the_registry_expects_is_refused_unless_told_otherwise(directory: Path) -> None:
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
