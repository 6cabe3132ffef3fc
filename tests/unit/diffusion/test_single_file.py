"""Load all weights from one safetensors file next to the configurations, as model sites publish them."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import diffusers
import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.fixtures.checkpoints import write_checkpoint, write_flow_checkpoint
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.denoising import DenoisingRequest, NoiseStart
from pentimento.diffusion.weights import load_components
from tests.support.single_files import lone_file, split_copy
from tests.support.text_files import edit_json
from tests.unit.diffusion.specs import denoise, load, spec_with


@pytest.fixture(scope="module")
def kl_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "kl", vae="kl")


@pytest.fixture(scope="module")
def single(kl_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_copy(kl_checkpoint, tmp_path_factory.mktemp("single") / "kl")


@pytest.fixture
def plain_flow_checkpoint(tmp_path: Path) -> Path:
    """Write a checkpoint with the identity as the projection of its first text encoder: the original layout has no
    other."""

    directory = write_flow_checkpoint(tmp_path / "flow", max_sequence_length=0)
    weights = directory / "text_encoder" / "model.safetensors"
    save_file({**load_file(weights), "text_projection.weight": torch.eye(16)}, weights, {"format": "pt"})
    return directory


@pytest.mark.parametrize("family", ["kl_checkpoint", "xl_checkpoint", "plain_flow_checkpoint"])
def test_a_single_file_generates_the_same_image(family: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    directory: Path = request.getfixturevalue(family)
    whole, single = load(directory), load(split_copy(directory, tmp_path / "single"))
    asked = DenoisingRequest(spec_with(scheduler=whole.info.schedulers[0]), NoiseStart())

    latent, expected = denoise(single, asked), denoise(whole, asked)

    # Weights lie at other addresses, and on some processors a kernel's last bits depend on their alignment.
    torch.testing.assert_close(latent, expected, rtol=0, atol=1e-5)
    with torch.inference_mode():
        pixels = (single.decode_latent(latent), whole.decode_latent(expected))
    torch.testing.assert_close(*pixels, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["kl_checkpoint", "xl_checkpoint", "plain_flow_checkpoint"])
def test_load_components_equals_diffusers_single_file(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = lone_file(request.getfixturevalue(family), tmp_path / "mine")
    checkpoint = check_checkpoint(file)
    pipeline_class = getattr(diffusers, checkpoint.pipeline_class)
    absent = {"text_encoder_3": None, "tokenizer_3": None} if family == "plain_flow_checkpoint" else {}
    reference = pipeline_class.from_single_file(
        str(file), config=str(tmp_path / "mine"), local_files_only=True, torch_dtype=torch.float32, **absent
    )

    parts = load_components(checkpoint, torch.device("cpu"), torch.float32)

    assert {name for name in checkpoint.held} == {name for name in parts if not name.startswith("tokenizer")}
    for name in checkpoint.held:
        wanted, found = getattr(reference, name).state_dict(), parts[name].state_dict()
        assert wanted.keys() == found.keys()
        assert all(torch.equal(wanted[key], found[key]) for key in wanted)


def test_weights_in_a_folder_replace_the_files(kl_checkpoint: Path, tmp_path: Path) -> None:
    file = lone_file(kl_checkpoint, tmp_path / "mine")
    other = write_checkpoint(tmp_path / "other", vae="tiny")
    shutil.rmtree(tmp_path / "mine" / "vae")
    shutil.copytree(other / "vae", tmp_path / "mine" / "vae")
    edit_json(tmp_path / "mine" / "model_index.json", vae=["diffusers", "AutoencoderTiny"])

    parts = load_components(check_checkpoint(file), torch.device("cpu"), torch.float32)

    assert type(parts["vae"]).__name__ == "AutoencoderTiny"


def test_scales_of_fp8_weights_are_multiplied(kl_checkpoint: Path, tmp_path: Path) -> None:
    file = lone_file(kl_checkpoint, tmp_path / "mine")
    before = load(file).denoiser.mid_block.attentions[0].proj_out.weight
    tensors = load_file(file)
    name = "model.diffusion_model.middle_block.1.proj_out"
    tensors[f"{name}.scale_weight"] = torch.tensor(0.5)
    save_file(tensors, file)

    assert torch.equal(load(file).denoiser.mid_block.attentions[0].proj_out.weight, before * 0.5)


def test_missing_tensor_of_a_network_is_named(kl_checkpoint: Path, tmp_path: Path) -> None:
    file = lone_file(kl_checkpoint, tmp_path / "mine")
    tensors = load_file(file)
    del tensors["model.diffusion_model.out.2.weight"]
    save_file(tensors, file)

    with pytest.raises(BadCheckpoint, match=r"mine\.safetensors: unet .* no tensor for 'conv_out\.weight'"):
        load(file)


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


def test_component_weights_take_precedence_over_single_file(kl_checkpoint: Path, single: Path, tmp_path: Path) -> None:
    both = shutil.copytree(kl_checkpoint, tmp_path / "both")
    shutil.copy(single / "all.safetensors", both / "all.safetensors")

    assert load(both).info.model_digest == load(kl_checkpoint).info.model_digest
