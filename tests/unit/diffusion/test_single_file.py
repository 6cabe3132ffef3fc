"""All weights in one safetensors file beside the configurations, as model sites hand them out."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch

from lab.fixtures.checkpoints import write_checkpoint, write_flow_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.painting import NoiseStart, PaintingRequest
from tests.support.single_files import split_copy
from tests.unit.diffusion.specs import paint, spec_with


def load(directory: Path) -> DiffusionModel:
    return load_model(directory, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def kl_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "kl", vae="kl")


@pytest.fixture(scope="module")
def single(kl_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_copy(kl_checkpoint, tmp_path_factory.mktemp("single") / "kl")


@pytest.fixture
def plain_flow_checkpoint(tmp_path: Path) -> Path:
    """Its first text encoder projects by the identity, all that the original layout can say."""
    from safetensors.torch import load_file, save_file

    directory = write_flow_checkpoint(tmp_path / "flow", max_sequence_length=0)
    weights = directory / "text_encoder" / "model.safetensors"
    save_file({**load_file(weights), "text_projection.weight": torch.eye(16)}, weights, {"format": "pt"})
    return directory


@pytest.mark.parametrize("family", ["kl_checkpoint", "xl_checkpoint", "plain_flow_checkpoint"])
def test_a_single_file_paints_the_same_picture(family: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    directory: Path = request.getfixturevalue(family)
    whole, single = load(directory), load(split_copy(directory, tmp_path / "single"))
    asked = PaintingRequest(spec_with(scheduler=whole.info.schedulers[0]), NoiseStart())

    latent, expected = paint(single, asked), paint(whole, asked)

    # Weights lie at other addresses, and on some processors a kernel's last bits depend on their alignment.
    torch.testing.assert_close(latent, expected, rtol=0, atol=1e-5)
    with torch.inference_mode():
        pixels = (single.decode_latent(latent), whole.decode_latent(expected))
    torch.testing.assert_close(*pixels, rtol=0, atol=1e-5)


def test_its_digest_covers_the_file_and_counts_it_to_the_autoencoder(single: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    other = shutil.copytree(single, tmp_path / "other")
    tensors = load_file(other / "all.safetensors")
    tensors["first_stage_model.decoder.conv_in.bias"] += 1.0
    save_file(tensors, other / "all.safetensors")

    before, after = load(single).info, load(other).info

    assert before.model_digest != after.model_digest
    assert before.vae_digest != after.vae_digest
    assert before.scheduler_digest == after.scheduler_digest


def test_two_files_are_refused(single: Path, tmp_path: Path) -> None:
    other = shutil.copytree(single, tmp_path / "other")
    shutil.copy(other / "all.safetensors", other / "another.safetensors")

    with pytest.raises(BadCheckpoint, match="2 safetensors files"):
        load(other)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "diffusion_pytorch_model.bin", "model.ckpt"])
def test_pickles_where_a_library_would_look_for_weights_are_refused(single: Path, tmp_path: Path, name: str) -> None:
    other = shutil.copytree(single, tmp_path / "other")
    (other / "vae" / name).write_bytes(pickle.dumps({}))

    with pytest.raises(BadCheckpoint, match=name):
        load(other)


def test_a_pickle_in_the_files_place_is_refused(single: Path, tmp_path: Path) -> None:
    other = shutil.copytree(single, tmp_path / "other")
    (other / "all.safetensors").write_bytes(pickle.dumps({}))

    with pytest.raises(BadCheckpoint, match=r"all\.safetensors: not a safetensors file"):
        load(other)


def test_a_file_that_lacks_a_component_is_refused_in_one_line(single: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    other = shutil.copytree(single, tmp_path / "other")
    tensors = load_file(other / "all.safetensors")
    save_file({key: value for key, value in tensors.items() if "cond_stage" not in key}, other / "all.safetensors")

    with pytest.raises(BadCheckpoint, match=r"all\.safetensors") as refused:
        load(other)
    assert "\n" not in refused.value.message


def test_weights_of_the_components_go_before_a_file_beside_them(
    kl_checkpoint: Path, single: Path, tmp_path: Path
) -> None:
    both = shutil.copytree(kl_checkpoint, tmp_path / "both")
    shutil.copy(single / "all.safetensors", both / "all.safetensors")

    assert load(both).info.model_digest == load(kl_checkpoint).info.model_digest
