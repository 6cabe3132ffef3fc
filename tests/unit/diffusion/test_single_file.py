"""All weights in one safetensors file beside the configurations, as model sites hand them out."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.fixtures.checkpoints import write_checkpoint, write_flow_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.painting import NoiseStart, PaintingRequest
from tests.support.single_files import split_copy
from tests.unit.diffusion.specs import load, paint, spec_with


@pytest.fixture(scope="module")
def kl_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "kl", vae="kl")


@pytest.fixture(scope="module")
def single(kl_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_copy(kl_checkpoint, tmp_path_factory.mktemp("single") / "kl")


@pytest.fixture
def plain_flow_checkpoint(tmp_path: Path) -> Path:
    """Its first text encoder projects by the identity, all that the original layout can say."""

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

    other = shutil.copytree(single, tmp_path / "other")
    tensors = load_file(other / "all.safetensors")
    tensors["first_stage_model.decoder.conv_in.bias"] += 1.0
    save_file(tensors, other / "all.safetensors")

    before, after = load(single).info, load(other).info

    assert before.model_digest != after.model_digest
    assert before.vae_digest != after.vae_digest
    assert before.scheduler_digest == after.scheduler_digest


def lack_the_text_encoder(file: Path) -> None:
    save_file({key: value for key, value in load_file(file).items() if "cond_stage" not in key}, file)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        pytest.param(
            lambda file: shutil.copy(file, file.with_name("another.safetensors")), "2 safetensors files", id="two files"
        ),
        *(
            pytest.param(
                lambda file, name=name: (file.parent / "vae" / name).write_bytes(pickle.dumps({})), name, id=name
            )
            for name in ("pytorch_model.bin", "diffusion_pytorch_model.bin", "model.ckpt")
        ),
        pytest.param(
            lambda file: file.write_bytes(pickle.dumps({})), r"all\.safetensors: not a safetensors file", id="a pickle"
        ),
        pytest.param(lack_the_text_encoder, r"all\.safetensors", id="a missing component"),
    ],
)
def test_load_model_refuses_single_file_in_one_line(
    single: Path, tmp_path: Path, damage: Callable[[Path], object], named: str
) -> None:
    other = shutil.copytree(single, tmp_path / "other")
    damage(other / "all.safetensors")

    with pytest.raises(BadCheckpoint, match=named) as refused:
        load(other)
    assert "\n" not in refused.value.message


def test_weights_of_the_components_go_before_a_file_beside_them(
    kl_checkpoint: Path, single: Path, tmp_path: Path
) -> None:
    both = shutil.copytree(kl_checkpoint, tmp_path / "both")
    shutil.copy(single / "all.safetensors", both / "all.safetensors")

    assert load(both).info.model_digest == load(kl_checkpoint).info.model_digest
