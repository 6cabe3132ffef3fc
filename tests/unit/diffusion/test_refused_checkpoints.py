"""Hostile checkpoints: an error of one line names the file, or the load ignores the planted code.

Rows damage a copy of a checkpoint; nothing that was not validated may be opened.
"""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.fixtures.checkpoints import write_flow_checkpoint
from lab.fixtures.flow_checkpoints import write_flux_checkpoint, write_qwen_image_checkpoint, write_z_image_checkpoint
from lab.fixtures.sana_checkpoints import write_sana_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint, check_inside, digest_directory
from tests.support.text_files import edit_json
from tests.unit.diffusion.damages import (
    CLIP,
    INDEX,
    SCHEDULER,
    TEXT,
    TOKENS,
    TRANSFORMER,
    UNET,
    UNET_CONFIG,
    Damage,
    another,
    canary_of,
    edited,
    index,
    lack_a_tensor,
    lengthen_header,
    lie_about_a_shape,
    linked,
    nested_text_config,
    put_part_of,
    shard_is_a_pickle,
    shard_lies_outside,
    t5_of_another_width,
    transformer_with,
    unet_of_sdxl,
    variant_index_lies_outside,
    written,
)
from tests.unit.diffusion.flux_2_damages import FLUX_2
from tests.unit.diffusion.specs import load

ROOT = Path(__file__).parents[3]
DEEP = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
DEEP_HEADER = (200_000).to_bytes(8, "little") + b"[" * 200_000
NO_SAFETENSORS = r"diffusion_pytorch_model\.safetensors: not a safetensors file"
TRANSFORMER_WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
SHARDS = "unet/diffusion_pytorch_model.safetensors.index.json"
OTHER_TENSORS = json.dumps({"weight_map": {"evil": "diffusion_pytorch_model.safetensors"}}).encode()
REFUSED: dict[str, dict[str, tuple[Damage, str]]] = {
    "checkpoint": {
        "a shard that is a pickle": (shard_is_a_pickle, r"unet/.*index\.json: names 'evil\.bin'"),
        "a shard outside": (shard_lies_outside, r"text_encoder/.*index\.json: names '\.\./\.\./outside"),
        "a variant's shard outside": (variant_index_lies_outside, r"index\.fp16\.json: names '\.\./\.\./outside"),
        "a shard that is absent": (
            lambda model: index(model, TEXT, "other.safetensors"),
            r"index\.json: names 'other\.safetensors'",
        ),
        "an index of other tensors": (written(SHARDS, OTHER_TENSORS), r"index\.json: names other tensors"),
        "an index without a map": (written(SHARDS, b'{"weight_map": ["a"]}'), r"index\.json: must map"),
        "weights in strange blobs": (linked(UNET, "blobs"), r"diffusion_pytorch_model\.safetensors: leads out"),
        "a configuration elsewhere": (linked("vae/config.json", "elsewhere"), r"vae/config\.json: leads out"),
        "an index elsewhere": (linked(INDEX, "elsewhere"), r"model_index\.json: leads out"),
        "a component elsewhere": (linked("vae", "."), r"vae/.*: leads out"),
        "a deep index": (written(INDEX, DEEP), r"model_index\.json: nested too deeply"),
        "a deep configuration": (written(UNET_CONFIG, DEEP), r"unet/config\.json: nested too deeply"),
        "a deep scheduler": (written(SCHEDULER, DEEP), r"scheduler_config\.json: nested too deeply"),
        "a deep tokenizer": (written(TOKENS, DEEP), r"tokenizer_config\.json: nested too deeply"),
        "a deep header": (written(UNET, DEEP_HEADER), NO_SAFETENSORS),
        "10^12 timesteps": (edited(SCHEDULER, num_train_timesteps=10**12), r"num_train_timesteps=1000000000000 is not"),
        "timesteps in words": (edited(SCHEDULER, num_train_timesteps="many"), r"num_train_timesteps='many'"),
        "a beta in words": (edited(SCHEDULER, beta_start="small"), r"scheduler_config\.json: a value is of the wrong"),
        "betas of letters": (edited(SCHEDULER, trained_betas=["a"]), "wrong type"),
        "10^9 layers": (edited(CLIP, num_hidden_layers=10**9), r"text_encoder/config\.json: num_hidden_layers=10{9}"),
        "10^9 wide": (edited(CLIP, hidden_size=10**9), r"text_encoder/config\.json: hidden_size=1000000000"),
        "10^9 blocks": (edited(UNET_CONFIG, layers_per_block=10**9), r"unet/config\.json: layers_per_block="),
        "10^9 tokens": (edited(TOKENS, model_max_length=10**9), r"tokenizer: model_max_length=1000000000"),
        "more tokens than the encoder": (edited(TOKENS, model_max_length=40), r"tokenizer: model_max_length=40.* 16"),
        "a renamed pickle": (
            lambda model: (model / UNET).write_bytes(pickle.dumps(canary_of(model))),
            f"unet/{NO_SAFETENSORS}",
        ),
        "a zipped pickle": (
            lambda model: torch.save({"canary": canary_of(model)}, model / UNET),
            "not a safetensors file",
        ),
        "pickled weights alone": (
            lambda model: (model / UNET).rename(model / "unet/diffusion_pytorch_model.bin"),
            "unet: no safetensors file in it",
        ),
        "truncated weights": (lambda model: (model / UNET).write_bytes((model / UNET).read_bytes()[:-1]), UNET),
        "a long header": (lengthen_header, UNET),
        "a shape that is a lie": (lie_about_a_shape, UNET),
        "empty weights": (written(UNET, b""), UNET),
        "a missing tensor": (lack_a_tensor, "unet"),
        "a foreign pipeline": (edited(INDEX, _class_name="KandinskyPipeline"), "KandinskyPipeline"),
        "a pipeline of two names": (edited(INDEX, _class_name=["my_pipeline", "Evil"]), "my_pipeline"),
        "a foreign module": (edited(INDEX, unet=["evil_module", "UNet2DConditionModel"]), "evil_module"),
        "a foreign autoencoder": (edited(INDEX, vae=["diffusers", "AutoencoderOobleck"]), "AutoencoderOobleck"),
        "a foreign encoder": (edited(INDEX, text_encoder=["transformers", "AutoModel"]), "AutoModel"),
        "a foreign scheduler": (edited(INDEX, scheduler=["diffusers", "LCMScheduler"]), "LCMScheduler"),
        "a foreign component": (edited(INDEX, adapter=["diffusers", "T2IAdapter"]), "adapter"),
        "a file as a class": (edited(INDEX, unet="unet.py"), "unet"),
        "no class": (edited(INDEX, unet=[None, None]), "unet"),
        "a projected condition": (edited(UNET_CONFIG, time_cond_proj_dim=256), "time_cond_proj_dim"),
        "an added embedding": (edited(UNET_CONFIG, addition_embed_type="text_time"), "addition_embed_type"),
        "attention to two texts": (edited(UNET_CONFIG, dual_cross_attention=True), "dual_cross"),
        "no size": (edited(UNET_CONFIG, sample_size=0), "sample_size=0"),
        "one side": (edited(UNET_CONFIG, sample_size=[8]), "sample_size"),
        "a text for a size": (edited(UNET_CONFIG, sample_size="8"), "sample_size"),
        "latents times nothing": (edited("vae/config.json", scaling_factor=0), "scaling_factor=0"),
        "latents times a text": (edited("vae/config.json", scaling_factor="1"), "scaling_factor"),
        "thresholding": (edited(SCHEDULER, thresholding=True), "thresholding"),
        "a learned variance": (edited(SCHEDULER, variance_type="learned_range"), "variance_type='learned_range'"),
        "predicted flow": (edited(SCHEDULER, prediction_type="flow"), "prediction_type='flow'"),
        "logarithmic spacing": (edited(SCHEDULER, timestep_spacing="log"), "timestep_spacing='log'"),
        "a beta of 0": (edited(SCHEDULER, beta_start=0.0), "betas"),
        "no timesteps": (edited(SCHEDULER, num_train_timesteps=0), "num_train_timesteps=0"),
        "a foreign sampler": (edited(SCHEDULER, _class_name="EvilScheduler"), "EvilScheduler"),
        "a network of other text states": (unet_of_sdxl, r"unet takes text states of 40 values.* make 16"),
    },
    "xl_checkpoint": {
        "no added embedding": (edited(UNET_CONFIG, addition_embed_type=None), "addition_embed_type"),
        "a projected condition": (edited(UNET_CONFIG, time_cond_proj_dim=8), "time_cond_proj_dim"),
        "aesthetics": (edited(INDEX, requires_aesthetics_score=True), "requires_aesthetics_score"),
        "no encoder": (edited(INDEX, text_encoder=[None, None]), "text_encoder"),
        "a transformer": (edited(INDEX, unet=["diffusers", "SD3Transformer2DModel"]), "SD3Transformer2DModel"),
        "zeros in words": (edited(INDEX, force_zeros_for_empty_prompt="yes"), "force_zeros_for_empty"),
        "no tokenizer": (lambda model: shutil.rmtree(model / "tokenizer_2"), "tokenizer_2"),
        "tokenizers of two lengths": (
            edited("tokenizer_2/tokenizer_config.json", model_max_length=10),
            r"tokenizer_2: model_max_length=10.* 16",
        ),
        "an encoder of other text states": (
            lambda model: put_part_of(model, write_flow_checkpoint(model.parent / "flow"), "text_encoder_2"),
            r"unet takes text states of 40 values.* make 36",
        ),
        **{
            f"deviations {deviations}": (
                edited("vae/config.json", latents_mean=[0.1] * 4, latents_std=deviations),
                "latents_std",
            )
            for deviations in ([0.0] * 4, ["1"] * 4, [1.0])
        },
    },
    "flow_checkpoint": {
        "fewer than no tokens": (edited(INDEX, max_sequence_length=-1), "max_sequence_length"),
        "10^9 tokens": (edited(INDEX, max_sequence_length=1e9), "max_sequence_length"),
        "any tokenizer": (edited(INDEX, tokenizer_3=["transformers", "AutoTokenizer"]), "AutoTokenizer"),
        "a class that is no flow": (edited(INDEX, scheduler=["diffusers", "DDIMScheduler"]), "DDIMScheduler"),
        "a sampler that is no flow": (edited(SCHEDULER, _class_name="DDIMScheduler"), "DDIMScheduler"),
        "a shift of no size": (edited(SCHEDULER, use_dynamic_shifting=True, base_shift=0.0), "base_shift=0.0"),
        "other text states": (transformer_with(joint_attention_dim=24), r"text states of 24 values.* make 36"),
        "other pooled text": (transformer_with(pooled_projection_dim=24), r"pooled text of 24 values.* make 36"),
        "a T5 of another width": (t5_of_another_width, r"text states of 48 values.* make 40"),
    },
    "z_image_checkpoint": {
        "no language model": (edited(INDEX, text_encoder=["transformers", "AutoModel"]), "AutoModel"),
        "10^9 layers": (edited(TRANSFORMER, n_layers=10**9), "n_layers"),
        "10^9 positions": (edited(TRANSFORMER, axes_lens=[10**9, 64, 64]), "axes_lens"),
        "few text positions": (edited(TRANSFORMER, axes_lens=[64, 64, 64]), r"axes_lens must begin with more than 97"),
        "patches of several sizes": (edited(TRANSFORMER, all_patch_size=[2, 4], all_f_patch_size=[1, 1]), "no tensor"),
        "other text states": (
            another(write_z_image_checkpoint, cap_feat_dim=24),
            r"text states of 24 values.* make 16",
        ),
        "other channels": (another(write_z_image_checkpoint, in_channels=8), r"takes 8 channels.* makes 4"),
        "an image as a prompt": (
            another(write_z_image_checkpoint, siglip_feat_dim=8),
            r"siglip_feat_dim=8 is not supported",
        ),
    },
    "sana_checkpoint": {
        "another family's autoencoder": (edited(INDEX, vae=["diffusers", "AutoencoderKL"]), "AutoencoderKL"),
        "truncated weights": (
            lambda model: (model / TRANSFORMER_WEIGHTS).write_bytes((model / TRANSFORMER_WEIGHTS).read_bytes()[:-1]),
            r"transformer/diffusion_pytorch_model\.safetensors",
        ),
        "a diffusion sampler": (edited(SCHEDULER, use_flow_sigmas=False), "with use_flow_sigmas"),
        "predicted noise": (edited(SCHEDULER, prediction_type="epsilon"), r"prediction_type='epsilon'"),
        "a third order": (edited(SCHEDULER, solver_order=3), "solver_order=3"),
        "the sampler of Sprint": (
            edited(INDEX, scheduler=["diffusers", "SCMScheduler"]),
            r"prediction_type='flow_prediction' is not supported, only 'trigflow'",
        ),
        "a network of Sprint": (
            another(write_sana_checkpoint, guidance_embeds=True),
            r"guidance_embeds=True does not suit the scheduler",
        ),
        "other text states": (
            another(write_sana_checkpoint, caption_channels=24),
            r"text states of 24 values.* make 16",
        ),
        "a learned variance": (another(write_sana_checkpoint, out_channels=8), r"makes 8 channels of 4"),
        "one token": (edited(INDEX, max_sequence_length=1), r"max_sequence_length=1 must be at least 2"),
        "10^9 layers": (edited("vae/config.json", decoder_layers_per_block=[10**9] * 3), "decoder_layers_per_block"),
    },
    "qwen_image_checkpoint": {
        "another language model": (edited(INDEX, text_encoder=["transformers", "Qwen3Model"]), "Qwen3Model"),
        "truncated weights": (
            lambda model: (model / TRANSFORMER_WEIGHTS).write_bytes((model / TRANSFORMER_WEIGHTS).read_bytes()[:-1]),
            r"transformer/diffusion_pytorch_model\.safetensors",
        ),
        "10^9 nested layers": (nested_text_config(num_hidden_layers=10**9), r"text_encoder/config\.json: num_hidden_l"),
        "a network for edits": (edited(TRANSFORMER, zero_cond_t=True), "zero_cond_t=True is not supported"),
        "patches of one": (
            another(write_qwen_image_checkpoint, patch_size=1, out_channels=16),
            "patch_size must be 2, got 1",
        ),
        "other channels": (
            another(write_qwen_image_checkpoint, in_channels=32, out_channels=8),
            "in_channels and out_channels are 32 and 8",
        ),
        "other text states": (
            another(write_qwen_image_checkpoint, joint_attention_dim=24),
            r"text states of 24 values.* make 16",
        ),
        "a mean too few": (edited("vae/config.json", latents_mean=[0.1] * 3), "latents_mean"),
    },
    "flux_checkpoint": {
        "no T5": (edited(INDEX, text_encoder_2=[None, None]), "text_encoder_2"),
        "10^9 layers": (edited(TRANSFORMER, num_single_layers=10**9), "num_single_layers"),
        "patches of patches": (another(write_flux_checkpoint, patch_size=2), r"patch_size must be 1, got 2"),
        "odd positions": (
            another(write_flux_checkpoint, axes_dims_rope=(2, 3, 3)),
            r"axes_dims_rope=\[2, 3, 3\] must be three even",
        ),
        "two axes": (
            another(write_flux_checkpoint, axes_dims_rope=(4, 4)),
            r"axes_dims_rope=\[4, 4\] must be three even",
        ),
        "a condition beside the latents": (
            another(write_flux_checkpoint, in_channels=32, out_channels=16),
            r"takes 32 channels.* makes 16",
        ),
        "other text states": (
            another(write_flux_checkpoint, joint_attention_dim=24),
            r"text states of 24 values.* make 40",
        ),
        "other pooled text": (
            another(write_flux_checkpoint, pooled_projection_dim=24),
            r"pooled text of 24 values.* make 16",
        ),
        "no size": (edited(TRANSFORMER, sample_size=0), "sample_size=0"),
    },
    **FLUX_2,
}


@pytest.mark.parametrize(
    ("family", "damage", "named"),
    [
        pytest.param(family, damage, named, id=f"{family}-{name}")
        for family, rows in REFUSED.items()
        for name, (damage, named) in rows.items()
    ],
)
def test_load_model_refuses_checkpoint_in_one_line(
    family: str, damage: Damage, named: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = shutil.copytree(request.getfixturevalue(family), tmp_path / "model")
    damage(model)

    with pytest.raises(BadCheckpoint, match=named) as refused:
        load(model)
    assert "\n" not in refused.value.message
    assert not (tmp_path / "canary").exists()


def test_load_model_broken_json_names_file_in_one_line(copy: Path) -> None:
    for file in (INDEX, UNET_CONFIG, SCHEDULER):
        sound = (copy / file).read_text()
        for content in ("", "{", "[]", '"text"'):
            (copy / file).write_text(content)
            with pytest.raises(BadCheckpoint) as refused:
                load(copy)
            assert file.split("/")[0] in refused.value.message, (file, content)
            assert "\n" not in refused.value.message, (file, content)
        (copy / file).write_text(sound)


def planted(model: Path) -> None:
    """Plant files that nothing may open in a checkpoint that loads."""
    for name in ("adapter_config.json", "generation_config.json", "quantization_config.json"):
        (model / "text_encoder" / name).write_text("{}")
    edit_json(
        model / CLIP,
        attn_implementation="kernels-community/evil",
        quantization_config={"quant_method": "bitsandbytes"},
        auto_map={"AutoModel": "evil--evil.Evil"},
    )
    edit_json(model / TOKENS, auto_map={"AutoTokenizer": "evil.Evil"}, tokenizer_file="/evil")
    for folder in ("unet", "text_encoder"):
        (model / folder / "pytorch_model.bin").write_bytes(b"evil")


@pytest.fixture(scope="module")
def opened(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Damage, Any]:
    """Return the files that one process opened for each damaged checkpoint."""
    models: dict[Damage, Path] = {}
    for poison in (planted, shard_is_a_pickle, shard_lies_outside):
        models[poison] = shutil.copytree(checkpoint, tmp_path_factory.mktemp("poisoned") / "model")
        poison(models[poison])
    command = [sys.executable, "-m", "tests.unit.diffusion.opened_files", *map(str, models.values())]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=True)
    return dict(zip(models, map(json.loads, outcome.stdout.splitlines()), strict=True))


@pytest.mark.slow
def test_load_model_opens_only_files_of_its_digest(opened: dict[Damage, Any]) -> None:
    found = opened[planted]

    assert found["refused"] == ""
    assert {"model/text_encoder/config.json", f"model/{UNET}"} <= set(found["digested"])
    assert found["strange"] == []


@pytest.mark.parametrize("poison", [shard_is_a_pickle, shard_lies_outside])
def test_load_model_opens_no_shard_outside(opened: dict[Damage, Any], poison: Damage) -> None:
    found = opened[poison]

    assert "names" in found["refused"]
    assert not [name for name in found["strange"] if "evil" in name or "outside" in name]


@pytest.mark.parametrize(
    ("blobs", "followed"),
    [
        ("models--me--mine/blobs", True),
        ("models--you--yours/blobs", False),
        ("blobs", False),
        ("models--me--mine/blobs/deeper/blobs", False),
    ],
)
def test_check_inside_follows_the_hubs_own_cache(tmp_path: Path, blobs: str, followed: bool) -> None:
    snapshot = tmp_path / "models--me--mine" / "snapshots" / "0123abcd"
    (snapshot / "unet").mkdir(parents=True)
    (tmp_path / blobs).mkdir(parents=True)
    (tmp_path / blobs / "f00d").write_text("{}")
    (snapshot / UNET_CONFIG).symlink_to(tmp_path / blobs / "f00d")

    if followed:
        check_inside(snapshot, [snapshot / UNET_CONFIG])
    else:
        with pytest.raises(BadCheckpoint, match="leads out"):
            check_inside(snapshot, [snapshot / UNET_CONFIG])


def test_model_digest_is_of_whole_directory(copy: Path) -> None:
    assert load(copy).info.model_digest == digest_directory(copy)
