"""Directories of ControlNets: what is served, what is refused by name, and which models they fit."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.fixtures.checkpoints import write_flow_controlnet
from pentimento.diffusion.checkpoint import BadCheckpoint, digest_directory
from pentimento.diffusion.controlnets import ControlNet, load_controlnet, loading, open_controlnet
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


def test_what_it_is_is_told(controlnet: ControlNet, controlnet_directory: Path) -> None:
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
def test_the_zoos_are_those_of_its_registry(name: str) -> None:
    entries = json.loads((ZOO / "registry.json").read_text())["models"]
    entry = next(entry for entry in entries if entry["name"] == name)

    info = load(ZOO / name).info

    assert (info.digest, info.base_digest) == (entry["digest"], entry["base"]["digest"])


def test_another_digest_than_expected_is_refused(copy: Path) -> None:
    with pytest.raises(FailedPrecondition, match="expected sha256:0000") as refused:
        load(copy, "sha256:" + "0" * 64)
    assert refused.value.reason == "MODEL_DIGEST_MISMATCH"


def test_another_digest_than_its_registrys_is_refused(copy: Path) -> None:
    entry = {"path": copy.name, "digest": "sha256:" + "1" * 64}
    (copy.parent / "registry.json").write_text(json.dumps({"models": [entry]}))

    with pytest.raises(FailedPrecondition, match="expected sha256:1111"):
        load(copy)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"_class_name": "ControlNetXSAdapter"}, r"config\.json: class 'ControlNetXSAdapter' is not one of"),
        ({"_class_name": ["ControlNetModel"]}, "is not one of ControlNetModel, SD3ControlNetModel"),
        ({"class_embed_type": "timestep"}, "class_embed_type='timestep' is not supported"),
        ({"encoder_hid_dim_type": "text_proj"}, "encoder_hid_dim_type='text_proj' is not supported"),
        ({"addition_embed_type": "image"}, "addition_embed_type must be 'text_time' or absent, got 'image'"),
        ({"addition_embed_type": {}}, "addition_embed_type must be 'text_time' or absent"),
        ({"global_pool_conditions": True}, "global_pool_conditions is not supported"),
        ({"controlnet_conditioning_channel_order": "gbr"}, "channel_order must be rgb or bgr, got 'gbr'"),
        ({"layers_per_block": 65}, "layers_per_block=65 is out of bounds"),
        ({"layers_per_block": 10**4000}, r"layers_per_block=10+ is out of bounds"),
        ({"conditioning_channels": 4}, "ControlNetModel does not load"),
        ({"block_out_channels": [16, 32, 32]}, "ControlNetModel does not load"),
    ],
)
def test_a_configuration_that_is_not_served_is_named(copy: Path, changes: dict[str, Any], named: str) -> None:
    edit_json(copy / "config.json", **changes)

    with pytest.raises(BadCheckpoint, match=named) as refused:
        load(copy)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"joint_attention_dim": None}, "joint_attention_dim=None is not supported"),
        ({"use_pos_embed": False}, "use_pos_embed=False is not supported"),
        ({"extra_conditioning_channels": 1}, "extra_conditioning_channels=1 is not 0"),
    ],
)
def test_a_flows_configuration_that_is_not_served_is_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    directory = write_flow_controlnet(tmp_path / "flow")
    edit_json(directory / "config.json", **changes)

    with pytest.raises(BadCheckpoint, match=named):
        load(directory)


def pickled(directory: Path) -> None:
    (directory / WEIGHTS).write_bytes(pickle.dumps({}))


def only_pickles(directory: Path) -> None:
    (directory / WEIGHTS).rename(directory / "diffusion_pytorch_model.bin")


def leads_out(directory: Path) -> None:
    (directory / WEIGHTS).rename(directory.parent / "outside.safetensors")
    (directory / WEIGHTS).symlink_to(directory.parent / "outside.safetensors")


def no_configuration(directory: Path) -> None:
    (directory / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (pickled, "not a safetensors file"),
        (only_pickles, "no safetensors file in it"),
        (leads_out, "leads out of the checkpoint"),
        (no_configuration, r"config\.json: cannot be read"),
    ],
)
def test_files_that_are_not_served_are_named(copy: Path, damage: Callable[[Path], None], named: str) -> None:
    damage(copy)

    with pytest.raises(BadCheckpoint, match=named):
        load(copy)


def test_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="absent: not a directory"):
        open_controlnet(tmp_path / "absent")


def test_weights_that_lack_a_tensor_are_refused(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(copy / WEIGHTS)
    del tensors["controlnet_mid_block.weight"]
    save_file(tensors, copy / WEIGHTS)

    with pytest.raises(
        BadCheckpoint, match=r"ControlNetModel does not load: .*controlnet_mid_block\.weight"
    ) as refused:
        load(copy)
    assert str(copy) in refused.value.message and "pentimento-model-" not in refused.value.message
