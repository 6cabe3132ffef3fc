"""Files of the original layout: their kind by names and shapes, published configurations, and rejected ones."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.loaders.single_file_utils import (
    convert_flux_transformer_checkpoint_to_diffusers,
    convert_ldm_unet_checkpoint,
    convert_sd3_transformer_checkpoint_to_diffusers,
)
from transformers import CLIPTokenizer

from pentimento.diffusion.allow_list import check_checkpoint, family_of
from pentimento.diffusion.checkpoint import BadCheckpoint, digest_checkpoint
from pentimento.diffusion.file_layouts import CLIP_MERGES, recognise
from pentimento.diffusion.model_registry import usual_settings
from pentimento.diffusion.staging import clip_vocabulary
from tests.support.single_files import layout_of, original_tensors_of, published_networks, write_sparse

Shapes = dict[str, tuple[int, ...]]
# Parameters as published, by component.
AUTOENCODER, CLIP_L = 83_653_863, 123_060_480
PUBLISHED = {
    "sd1": {"unet": 859_520_964, "vae": AUTOENCODER, "text_encoder": CLIP_L},
    "sd2": {"unet": 865_910_724, "vae": AUTOENCODER, "text_encoder": 340_387_840},
    "sdxl": {"unet": 2_567_463_684, "vae": AUTOENCODER, "text_encoder": CLIP_L, "text_encoder_2": 694_659_840},
}
FAMILIES = {
    "sd1": "stable_diffusion",
    "sd2": "stable_diffusion",
    "sdxl": "stable_diffusion_xl",
    "sd3_medium": "stable_diffusion_3",
}
CONVERSIONS = {
    "sd1": convert_ldm_unet_checkpoint,
    "sd2": convert_ldm_unet_checkpoint,
    "sdxl": convert_ldm_unet_checkpoint,
    "sd3_medium": convert_sd3_transformer_checkpoint_to_diffusers,
    "flux_dev": convert_flux_transformer_checkpoint_to_diffusers,
    "flux_schnell": convert_flux_transformer_checkpoint_to_diffusers,
}


@pytest.fixture(scope="module")
def published() -> dict[str, tuple[dict[str, torch.nn.Module], Shapes]]:
    """Return networks and original shapes by layout."""
    found = {}
    for stem in CONVERSIONS:
        networks = published_networks(stem)
        tensors = original_tensors_of(stem, networks)
        found[stem] = (networks, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    return found


@pytest.mark.parametrize("stem", PUBLISHED)
def test_published_configurations_have_published_sizes(published: dict[str, Any], stem: str) -> None:
    networks, _ = published[stem]

    counts = {name: sum(one.numel() for one in network.parameters()) for name, network in networks.items()}

    assert counts == PUBLISHED[stem]


@pytest.mark.parametrize("stem", CONVERSIONS)
def test_diffusers_mapping_fills_the_published_denoiser(published: dict[str, Any], stem: str) -> None:
    networks, _ = published[stem]
    name = layout_of(stem).denoiser
    tensors = original_tensors_of(stem, {name: networks[name]})

    converted = CONVERSIONS[stem](dict(tensors), config=layout_of(stem).configs[f"{name}/config.json"])

    wanted = {key: tensor.shape for key, tensor in networks[name].state_dict().items()}
    assert {key: tensor.shape for key, tensor in converted.items()} == wanted


@pytest.mark.parametrize("stem", FAMILIES)
def test_check_checkpoint_recognises_a_file_by_its_header(published: dict[str, Any], tmp_path: Path, stem: str) -> None:
    file = write_sparse(tmp_path / "mine.safetensors", published[stem][1])

    checkpoint = check_checkpoint(file)

    assert family_of(checkpoint).name == FAMILIES[stem]
    assert {*checkpoint.held} == {*published[stem][0]}
    assert usual_settings(file).steps == (28 if stem == "sd3_medium" else 50)


@pytest.mark.parametrize(("stem", "title"), [("flux_dev", "FLUX.1 dev"), ("flux_schnell", "FLUX.1 schnell")])
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_denoiser_alone_needs_the_other_components(
    published: dict[str, Any], tmp_path: Path, stem: str, title: str, prefix: str
) -> None:
    denoiser = "model.diffusion_model."
    shapes = {
        prefix + name.removeprefix(denoiser): shape
        for name, shape in published[stem][1].items()
        if name.startswith(denoiser)
    }
    file = write_sparse(tmp_path / "mine.safetensors", shapes)

    assert recognise(file).layout.title == title
    assert recognise(file).held == {"transformer": prefix}
    with pytest.raises(BadCheckpoint, match=r"no tensor vae\.\*: put its vae \(AutoencoderKL\) into .*mine/vae"):
        check_checkpoint(file)


def test_nine_input_channels_make_an_inpainting_model(published: dict[str, Any], tmp_path: Path) -> None:
    shapes = {**published["sd1"][1], "model.diffusion_model.input_blocks.0.0.weight": (320, 9, 3, 3)}

    checkpoint = check_checkpoint(write_sparse(tmp_path / "mine.safetensors", shapes))

    assert checkpoint.config("unet")["in_channels"] == 9


@pytest.mark.parametrize(
    ("extra", "metadata", "prediction"),
    [
        ({}, {}, "epsilon"),
        ({}, {"modelspec.prediction_type": "v"}, "v_prediction"),
        ({"v_pred": (0,), "ztsnr": (0,)}, {}, "v_prediction"),
    ],
)
def test_scheduler_prediction_follows_file(
    published: dict[str, Any], tmp_path: Path, extra: Shapes, metadata: dict[str, str], prediction: str
) -> None:
    file = write_sparse(tmp_path / "mine.safetensors", {**published["sdxl"][1], **extra}, **metadata)

    scheduler = check_checkpoint(file).config("scheduler", "scheduler_config.json")

    assert scheduler["prediction_type"] == prediction
    assert scheduler.get("rescale_betas_zero_snr", False) == ("ztsnr" in extra)


@pytest.mark.parametrize(
    ("name", "spacing"),
    [
        ("sdxl_lightning_4step", "trailing"),
        ("Hyper-SDXL-1step-Unet", "trailing"),
        ("sd_xl_turbo_1.0_fp16", "trailing"),
        ("hyperrealism_v3", "leading"),
        ("DreamShaperXL_v21TurboDPMSDE", "leading"),
    ],
)
def test_scheduler_spacing_follows_the_name_of_a_distilled_file(
    published: dict[str, Any], tmp_path: Path, name: str, spacing: str
) -> None:
    file = write_sparse(tmp_path / f"{name}.safetensors", published["sdxl"][1])

    assert check_checkpoint(file).config("scheduler", "scheduler_config.json")["timestep_spacing"] == spacing


def without(prefix: str) -> Callable[[Shapes], Shapes]:
    return lambda shapes: {name: shape for name, shape in shapes.items() if not name.startswith(prefix)}


def also(*names: str) -> Callable[[Shapes], Shapes]:
    return lambda shapes: {**shapes, **dict.fromkeys(names, (1,))}


@pytest.mark.parametrize(
    ("stem", "change", "fault"),
    [
        ("sd1", also("model.diffusion_model.joint_blocks.0.x"), "tensors of two families, .*_blocks.* and .*_blocks"),
        ("sd1", also("conditioner.embedders.1.model.ln_final.bias"), "two families, .*cond"),
        ("sd1", without("first_stage_model."), r"no tensor first_stage_model\.\*: put its vae .* into .*mine/vae"),
        ("sdxl", without("conditioner.embedders.1."), r"no tensor .*embedders\.1.*put its text_encoder_2"),
        ("sd3_medium", also("text_encoders.t5xxl.transformer.shared.weight"), "put the files of its tokenizer_3"),
        ("sdxl", also("edm_mean"), "'edm_mean' says that it is Playground"),
        ("sd1", lambda shapes: {"lora_unet_down_blocks_0.alpha": ()}, "is a LoRA"),
        ("sd1", also("model.diffusion_model.double_blocks.0.img_attn.norm.key_norm.scale"), "two families"),
        ("sd1", lambda shapes: {**shapes, "model.diffusion_model.input_blocks.0.0.weight": (16, 4, 3, 3)},
         "'input_blocks.0.0.weight' has another shape than in Stable Diffusion 1.x"),
        ("sd1", lambda shapes: {}, "'' is no tensor of a model in the original layout"),
    ],
)  # fmt: skip
def test_check_checkpoint_refuses_file_in_one_line(
    published: dict[str, Any], tmp_path: Path, stem: str, change: Callable[[Shapes], Shapes], fault: str
) -> None:
    file = write_sparse(tmp_path / "mine.safetensors", change(published[stem][1]))

    with pytest.raises(BadCheckpoint, match=fault) as refused:
        check_checkpoint(file)

    assert refused.value.message.startswith(str(file))
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("mine.safetensors", pickle.dumps({}), "not a safetensors file"),
        ("mine.ckpt", pickle.dumps({}), "only .safetensors and .gguf files are opened"),
        ("mine.safetensors", (50).to_bytes(8, "little") + b"{", "its header length does not fit the file"),
    ],
)
def test_check_checkpoint_refuses_damaged_files(tmp_path: Path, name: str, content: bytes, fault: str) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(BadCheckpoint, match=f"{name}.*{fault}"):
        check_checkpoint(tmp_path / name)


def test_clip_vocabulary_is_that_of_clip(tmp_path: Path) -> None:
    words = clip_vocabulary(CLIP_MERGES.read_text(encoding="utf-8"))
    (tmp_path / "vocab.json").write_text(json.dumps(words))
    (tmp_path / "merges.txt").write_bytes(CLIP_MERGES.read_bytes())

    encode = CLIPTokenizer.from_pretrained(tmp_path)

    # As OpenAI's tokenizer numbers them.
    assert encode("a photo of a cat").input_ids == [49406, 320, 1125, 539, 320, 2368, 49407]
    assert encode("Hello  world!").input_ids == [49406, 3306, 1002, 256, 49407]
    assert len(words) == 49408


def test_digest_covers_published_configurations(published: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = check_checkpoint(write_sparse(tmp_path / "mine.safetensors", published["sd1"][1]))
    (tmp_path / "light").write_bytes(b"weights")  # gigabytes of zeros take seconds
    light = replace(checkpoint, files={**checkpoint.files, "mine.safetensors": tmp_path / "light"})
    scaled = {**checkpoint.configs["vae/config.json"], "scaling_factor": 0.5}

    before = digest_checkpoint(light)
    after = digest_checkpoint(replace(light, configs={**light.configs, "vae/config.json": scaled}))

    assert before.model != after.model
    assert before.components["vae"] != after.components["vae"]
    assert before.components["scheduler"] == after.components["scheduler"]
