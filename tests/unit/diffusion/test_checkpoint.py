"""Directories that must not be served: foreign classes, pickles in disguise, unsupported configurations."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.families import load_model
from tests.support.text_files import edit_json


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return shutil.copytree(checkpoint, tmp_path / "model")


def load(directory: Path) -> object:
    return load_model(directory, torch.device("cpu"), torch.float32)


class Canary:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


WEIGHTS = "unet/diffusion_pytorch_model.safetensors"


def test_a_pickle_renamed_to_safetensors_is_named_and_never_executed(copy: Path, tmp_path: Path) -> None:
    (copy / WEIGHTS).write_bytes(pickle.dumps(Canary(tmp_path / "canary")))

    with pytest.raises(BadCheckpoint, match=r"unet/diffusion_pytorch_model\.safetensors: not a safetensors file"):
        load(copy)
    assert not (tmp_path / "canary").exists()


def test_a_zipped_pickle_renamed_to_safetensors_is_named(copy: Path, tmp_path: Path) -> None:
    torch.save({"canary": Canary(tmp_path / "canary")}, copy / WEIGHTS)

    with pytest.raises(BadCheckpoint, match="not a safetensors file"):
        load(copy)
    assert not (tmp_path / "canary").exists()


def test_pickles_beside_the_weights_are_never_opened(copy: Path, tmp_path: Path) -> None:
    for folder in ("unet", "vae", "text_encoder"):
        (copy / folder / "pytorch_model.bin").write_bytes(pickle.dumps(Canary(tmp_path / "canary")))
        (copy / folder / "diffusion_pytorch_model.bin").write_bytes(pickle.dumps(Canary(tmp_path / "canary")))

    load(copy)

    assert not (tmp_path / "canary").exists()


def test_pickled_weights_alone_are_refused(copy: Path) -> None:
    (copy / WEIGHTS).rename(copy / "unet/diffusion_pytorch_model.bin")

    with pytest.raises(BadCheckpoint, match="unet: no safetensors file in it"):
        load(copy)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen_header(path: Path) -> None:
    path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])


def lie_about_a_shape(path: Path) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["conv_in.weight"]["shape"][0] += 1
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, lengthen_header, lie_about_a_shape, empty])
def test_a_corrupt_weight_file_is_named_in_one_line(copy: Path, damage: Callable[[Path], None]) -> None:
    damage(copy / WEIGHTS)

    with pytest.raises(BadCheckpoint) as refused:
        load(copy)
    assert WEIGHTS in refused.value.message
    assert "\n" not in refused.value.message


def test_weights_that_lack_a_tensor_are_refused(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(copy / WEIGHTS)
    del tensors["conv_in.weight"]
    save_file(tensors, copy / WEIGHTS)

    with pytest.raises(BadCheckpoint, match="unet"):
        load(copy)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"_class_name": "FluxPipeline"}, "FluxPipeline"),
        ({"_class_name": ["my_pipeline", "Evil"]}, "my_pipeline"),
        ({"unet": ["evil_module", "UNet2DConditionModel"]}, "evil_module"),
        ({"vae": ["diffusers", "AutoencoderOobleck"]}, "AutoencoderOobleck"),
        ({"text_encoder": ["transformers", "AutoModel"]}, "AutoModel"),
        ({"scheduler": ["diffusers", "LCMScheduler"]}, "LCMScheduler"),
        ({"adapter": ["diffusers", "T2IAdapter"]}, "adapter"),
        ({"unet": "unet.py"}, "unet"),
        ({"unet": [None, None]}, "unet"),
    ],
)
def test_foreign_classes_are_refused_by_name(copy: Path, changes: dict[str, Any], named: str) -> None:
    edit_json(copy / "model_index.json", **changes)

    with pytest.raises(BadCheckpoint, match=named):
        load(copy)


def test_code_beside_the_weights_is_not_run(copy: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (copy / "pipeline.py").write_text(f"open({str(canary)!r}, 'w')")
    (copy / "unet" / "unet_2d_condition.py").write_text(f"open({str(canary)!r}, 'w')")
    edit_json(copy / "unet/config.json", auto_map={"AutoModel": "unet_2d_condition.UNet2DConditionModel"})

    load(copy)

    assert not canary.exists()


@pytest.mark.parametrize(
    ("file", "changes", "named"),
    [
        ("unet/config.json", {"time_cond_proj_dim": 256}, "time_cond_proj_dim"),
        ("unet/config.json", {"addition_embed_type": "text_time"}, "addition_embed_type"),
        ("scheduler/scheduler_config.json", {"thresholding": True}, "thresholding"),
        ("scheduler/scheduler_config.json", {"variance_type": "learned_range"}, "variance_type='learned_range'"),
        ("scheduler/scheduler_config.json", {"prediction_type": "flow"}, "prediction_type='flow'"),
        ("scheduler/scheduler_config.json", {"timestep_spacing": "log"}, "timestep_spacing='log'"),
        ("scheduler/scheduler_config.json", {"beta_start": 0.0}, "betas"),
        ("scheduler/scheduler_config.json", {"num_train_timesteps": 0}, "num_train_timesteps=0"),
        ("scheduler/scheduler_config.json", {"_class_name": "EvilScheduler"}, "EvilScheduler"),
    ],
)
def test_unsupported_configuration_is_refused_by_name(
    copy: Path, file: str, changes: dict[str, Any], named: str
) -> None:
    edit_json(copy / file, **changes)

    with pytest.raises(BadCheckpoint, match=named):
        load(copy)


@pytest.mark.parametrize("file", ["model_index.json", "unet/config.json", "scheduler/scheduler_config.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", '"text"'])
def test_broken_json_is_named_in_one_line(copy: Path, file: str, content: str) -> None:
    (copy / file).write_text(content)

    with pytest.raises(BadCheckpoint) as refused:
        load(copy)
    assert file.split("/")[0] in refused.value.message
    assert "\n" not in refused.value.message


def test_a_link_that_leads_out_of_the_directory_is_refused(copy: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.safetensors"
    (copy / WEIGHTS).rename(outside)
    (copy / WEIGHTS).symlink_to(outside)

    with pytest.raises(BadCheckpoint, match="leads out"):
        load(copy)


def test_components_that_are_not_used_may_be_there(copy: Path) -> None:
    edit_json(copy / "model_index.json", safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"])

    load(copy)


@pytest.mark.parametrize("name", ["CLIPImageProcessor", "CLIPFeatureExtractor", "CLIPImageProcessorPil"])
def test_image_processors_are_let_be_by_whatever_name_their_release_gave_them(copy: Path, name: str) -> None:
    """Without torchvision transformers 5 writes the last one."""
    edit_json(copy / "model_index.json", feature_extractor=["transformers", name])

    load(copy)


def test_the_digest_covers_weights_and_configuration_but_no_bystanders(copy: Path) -> None:
    before = load_model(copy, torch.device("cpu"), torch.float32).info
    (copy / "README.md").write_text("a card")
    (copy / "unet" / "pickle.bin").write_bytes(b"x")
    same = load_model(copy, torch.device("cpu"), torch.float32).info
    edit_json(copy / "scheduler/scheduler_config.json", beta_end=0.013)
    after = load_model(copy, torch.device("cpu"), torch.float32).info

    assert same == before
    assert after.model_digest != before.model_digest
    assert after.scheduler_digest != before.scheduler_digest
    assert after.vae_digest == before.vae_digest


def test_half_precision_weights_are_computed_in_full(checkpoint: Path, tmp_path: Path) -> None:
    from lab.fixtures.checkpoints import write_checkpoint

    model = load_model(write_checkpoint(tmp_path / "half", half=True), torch.device("cpu"), torch.float32)

    with torch.inference_mode():
        assert model.encode_prompt("a cat").conditioning.states.dtype == torch.float32


def test_a_variant_stored_alone_is_found(copy: Path) -> None:
    (copy / WEIGHTS).rename(copy / "unet/diffusion_pytorch_model.fp16.safetensors")

    load(copy)


@pytest.mark.parametrize("variant", [None, "fp16"])
def test_weights_in_shards_are_found(copy: Path, variant: str | None) -> None:
    from diffusers import UNet2DConditionModel

    unet = UNet2DConditionModel.from_pretrained(copy / "unet")
    (copy / WEIGHTS).unlink()
    unet.save_pretrained(copy / "unet", max_shard_size="100KB", variant=variant)
    assert len(list((copy / "unet").glob("*.safetensors"))) > 1

    load(copy)


def test_a_tokenizer_of_the_fast_class_is_found(copy: Path) -> None:
    edit_json(copy / "model_index.json", tokenizer=["transformers", "CLIPTokenizerFast"])

    load(copy)
