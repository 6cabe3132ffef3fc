"""Damaged checkpoints of FLUX.2 by fixture, and the names in their errors."""

import shutil

from lab.fixtures.flow_checkpoints import write_klein_checkpoint
from tests.unit.diffusion.damages import (
    CLIP,
    INDEX,
    Damage,
    another,
    edited,
    nested_text_config,
    statistics_of,
)

TRANSFORMER_WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
FLUX_2: dict[str, dict[str, tuple[Damage, str]]] = {
    "klein_checkpoint": {
        "a language model of another family": (
            edited(INDEX, text_encoder=["transformers", "Qwen3Model"]),
            "Qwen3Model",
        ),
        "a transformer of FLUX.1": (edited(INDEX, transformer=["diffusers", "FluxTransformer2DModel"]), "FluxTransf"),
        "an autoencoder of FLUX.1": (
            edited(INDEX, vae=["diffusers", "AutoencoderKL"]),
            r"AutoencoderKL is not allowed",
        ),
        "a network that takes a scale": (
            another(write_klein_checkpoint, guidance_embeds=True),
            "guidance_embeds=True does not suit Flux2KleinPipeline",
        ),
        "no token": (edited(INDEX, max_sequence_length=0), "max_sequence_length must be at least 1, got 0"),
        "no tokenizer": (lambda model: shutil.rmtree(model / "tokenizer"), "component 'tokenizer' is missing"),
        "truncated weights": (
            lambda model: (model / TRANSFORMER_WEIGHTS).write_bytes((model / TRANSFORMER_WEIGHTS).read_bytes()[:-1]),
            r"transformer/diffusion_pytorch_model\.safetensors",
        ),
        "no statistics": (statistics_of(None), r"vae: .*there is no tensor 'bn\.running_mean'"),
        "statistics that are no numbers": (statistics_of(-1.0), r"vae: bn\.running_var has a value that is no number"),
        "patches of 10^12 cells": (edited("vae/config.json", patch_size=[10**6] * 2), r"patch_size must be \[2, 2\]"),
        "patches of patches": (another(write_klein_checkpoint, patch_size=2), "patch_size must be 1, got 2"),
        "three axes": (
            another(write_klein_checkpoint, axes_dims_rope=(4, 4, 8)),
            r"axes_dims_rope=\[4, 4, 8\] must be four even",
        ),
        "few layers": (
            edited(CLIP, num_hidden_layers=26, layer_types=["full_attention"] * 26),
            "num_hidden_layers=26 must be at least 27",
        ),
        "other text states": (
            another(write_klein_checkpoint, joint_attention_dim=24),
            r"text states of 24 values.* make 48",
        ),
        "other channels": (another(write_klein_checkpoint, in_channels=32), r"takes 32 channels.* makes 16"),
    },
    "flux_2_checkpoint": {
        "the language model of [klein]": (
            edited(INDEX, text_encoder=["transformers", "Qwen3ForCausalLM"]),
            r"Qwen3ForCausalLM is not allowed",
        ),
        "the tokenizer of [klein]": (edited(INDEX, tokenizer=["transformers", "Qwen2Tokenizer"]), "Qwen2Tokenizer is"),
        "a network that takes no scale": (
            another(write_klein_checkpoint),
            "guidance_embeds=False does not suit Flux2Pipeline",
        ),
        "few layers": (nested_text_config(num_hidden_layers=29), "num_hidden_layers=29 must be at least 30"),
        "another language model": (nested_text_config(model_type="llama"), "model_type=llama .* must be mistral"),
        "10^9 nested layers": (nested_text_config(num_hidden_layers=10**9), r"text_encoder/config\.json: num_hidden_l"),
        "no tokenizer file": (
            lambda model: (model / "tokenizer/tokenizer.json").unlink(),
            "tokenizer: PixtralProcessor does not load",
        ),
    },
}
