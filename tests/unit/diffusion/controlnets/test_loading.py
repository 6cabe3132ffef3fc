"""Test directories of ControlNets: loaded, rejected by name, and matched to models."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pentimento.diffusion.checkpoint import BadCheckpoint, digest_directory
from pentimento.diffusion.controlnets import ControlNet, load_controlnet, loading
from pentimento.diffusion.weights import load_network
from pentimento.domain.errors import FailedPrecondition
from tests.support.text_files import edit_json

WEIGHTS = "diffusion_pytorch_model.safetensors"
ZOO = Path(__file__).parents[4] / "zoo" / "weights"


@pytest.fixture
def copy(controlnet_directory: Path, tmp_path: Path) -> Path:
    return shutil.copytree(controlnet_directory, tmp_path / "edges")


def load(directory: Path, expected_digest: str = "") -> ControlNet:
    return load_controlnet(directory, torch.device("cpu"), torch.float32, expected_digest)


def test_controlnet_info_describes_model(controlnet: ControlNet, controlnet_directory: Path) -> None:
    info = controlnet.info

    assert (info.family, info.latent_channels, info.condition_channels) == ("stable_diffusion", 4, 3)
    assert (info.takes_latents, info.unshifted, info.base_digest) == (False, False, "")
    assert info.digest == digest_directory(controlnet_directory)


def test_weights_are_the_same_kind_of_tensors_whichever_mode_they_are_loaded_in(
    controlnet_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Any] = []
    monkeypatch.setattr(loading, "load_network", lambda *given: loaded.append(load_network(*given)) or loaded[-1])

    with torch.inference_mode():
        load(controlnet_directory)

    assert not any(weight.is_inference() for weight in loaded[0].parameters())


def test_a_flows_takes_latents(flow_controlnet: ControlNet) -> None:
    info = flow_controlnet.info

    assert (info.family, info.condition_channels) == ("stable_diffusion_3", 8)
    assert (info.takes_latents, info.unshifted) == (True, True)


@pytest.mark.parametrize("name", ["tiny-controlnet-edges", "tiny-controlnet-layout"])
def test_zoo_controlnet_equals_registry_entry(name: str) -> None:
    entries = json.loads((ZOO / "registry.json").read_text())["models"]
    entry = next(entry for entry in entries if entry["name"] == name)

    info = load(ZOO / name).info

    assert (info.digest, info.base_digest) == (entry["digest"], entry["base"]["digest"])


def test_load_controlnet_refuses_other_digest(copy: Path) -> None:
    with pytest.raises(FailedPrecondition, match="expected sha256:0000") as refused:
        load(copy, "sha256:" + "0" * 64)
    assert refused.value.reason == "MODEL_DIGEST_MISMATCH"

    entry = {"path": copy.name, "digest": "sha256:" + "1" * 64}
    (copy.parent / "registry.json").write_text(json.dumps({"models": [entry]}))
    with pytest.raises(FailedPrecondition, match="expected sha256:1111"):
        load(copy)


def lead_out(directory: Path) -> None:
    (directory / WEIGHTS).rename(directory.parent / "outside.safetensors")
    (directory / WEIGHTS).symlink_to(directory.parent / "outside.safetensors")


def lack_a_tensor(directory: Path) -> None:
    tensors = load_file(directory / WEIGHTS)
    del tensors["controlnet_mid_block.weight"]
    save_file(tensors, directory / WEIGHTS)


def edited(**changes: Any) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / "config.json", **changes)


REFUSED: dict[str, list[tuple[Callable[[Path], object], str]]] = {
    "controlnet_directory": [
        (edited(_class_name="ControlNetXSAdapter"), r"config\.json: class 'ControlNetXSAdapter' is not one of"),
        (edited(_class_name=["ControlNetModel"]), "is not one of ControlNetModel, SD3ControlNetModel"),
        (edited(class_embed_type="timestep"), "class_embed_type='timestep' is not supported"),
        (edited(encoder_hid_dim_type="text_proj"), "encoder_hid_dim_type='text_proj' is not supported"),
        (edited(addition_embed_type="image"), "addition_embed_type must be 'text_time' or absent, got 'image'"),
        (edited(addition_embed_type={}), "addition_embed_type must be 'text_time' or absent"),
        (edited(global_pool_conditions=True), "global_pool_conditions is not supported"),
        (edited(controlnet_conditioning_channel_order="gbr"), "channel_order must be rgb or bgr, got 'gbr'"),
        (edited(layers_per_block=65), "layers_per_block=65 is out of bounds"),
        (edited(layers_per_block=10**4000), r"layers_per_block=10+ is out of bounds"),
        (edited(conditioning_channels=4), "ControlNetModel does not load"),
        (edited(block_out_channels=[16, 32, 32]), "ControlNetModel does not load"),
        (lambda directory: (directory / WEIGHTS).write_bytes(pickle.dumps({})), "not a safetensors file"),
        (
            lambda directory: (directory / WEIGHTS).rename(directory / "diffusion_pytorch_model.bin"),
            "no safetensors file in it",
        ),
        (lead_out, "leads out of the checkpoint"),
        (lambda directory: (directory / "config.json").unlink(), r"config\.json: cannot be read"),
        (lack_a_tensor, r"ControlNetModel does not load: .*controlnet_mid_block\.weight"),
        (shutil.rmtree, "edges: not a directory"),
    ],
    "flow_controlnet_directory": [
        (edited(joint_attention_dim=None), "joint_attention_dim=None is not supported"),
        (edited(use_pos_embed=False), "use_pos_embed=False is not supported"),
        (edited(extra_conditioning_channels=1), "extra_conditioning_channels=1 is not 0"),
    ],
    "union_directory": [
        (edited(num_control_type=9), "num_control_type must be 1 to 8, got 9"),
        (edited(addition_embed_type=None), "addition_embed_type must be 'text_time' in a ControlNetUnionModel"),
        (edited(controlnet_conditioning_channel_order="bgr"), "channel_order must be rgb in a ControlNetUnionModel"),
    ],
}


@pytest.mark.parametrize(
    ("fixture", "damage", "named"),
    [(fixture, damage, named) for fixture, rows in REFUSED.items() for damage, named in rows],
)
def test_load_controlnet_refuses_directory_in_one_line(
    fixture: str, damage: Callable[[Path], object], named: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    copy = shutil.copytree(request.getfixturevalue(fixture), tmp_path / "edges")
    damage(copy)

    with pytest.raises(BadCheckpoint, match=named) as refused:
        load(copy)
    assert "\n" not in refused.value.message
    assert str(copy) in refused.value.message and "pentimento-model-" not in refused.value.message
