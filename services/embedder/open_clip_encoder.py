"""Open a directory of open_clip (`open_clip_config.json`): a CLIP with other names, which `DualEncoder` computes.

Supported are transformers of both modalities as in CLIP. A configuration with another key (a text model of Hugging
Face, a network of timm, attentional pooling) is rejected by the key's name. open_clip states no tokenizer: the
directory has tokenizer.json, or CLIP's vocab.json and merges.txt.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint, read_json_object
from pentimento.diffusion.clip_encoder import LEGACY_END_TOKEN
from pentimento.diffusion.preprocessing import CLIP_MEAN, CLIP_STD, ImagePreprocessing, preprocessing_of
from services.embedder.dual_encoder import DIGESTED_FILES, EncoderConfig, expected_shapes
from services.embedder.tower import EncoderCheckpoint, TowerConfig, digested_files, load_checkpoint, positive

CONFIG_FILE = "open_clip_config.json"
# open_clip's CLIPTextCfg and CLIPVisionCfg, in the part that is built here.
TEXT_DEFAULTS: dict[str, Any] = {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12}
VISION_DEFAULTS: dict[str, Any] = {"layers": 12, "width": 768, "head_width": 64, "patch_size": 16, "image_size": 224}
MLP_RATIO = 4.0
_MODEL_KEYS = {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu", "init_logit_scale", "init_logit_bias"}
_INTERPOLATIONS = {"bicubic": 3, "bilinear": 2, "nearest": 0}
_EPSILON = 1e-5
# Names of transformers and of open_clip: of a block, and of the tensors around the blocks.
_BLOCK = {
    "self_attn.out_proj": "attn.out_proj",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
_SINGLE = {
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    **{f"text_model.final_layer_norm.{part}": f"ln_final.{part}" for part in ("weight", "bias")},
    **{f"vision_model.pre_layrnorm.{part}": f"visual.ln_pre.{part}" for part in ("weight", "bias")},
    **{f"vision_model.post_layernorm.{part}": f"visual.ln_post.{part}" for part in ("weight", "bias")},
}
# Stored as (width, embed_dim), transformers' as (embed_dim, width).
_TURNED = {"text_projection.weight": "text_projection", "visual_projection.weight": "visual.proj"}
_STACKED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def open_open_clip(directory: Path) -> tuple[EncoderCheckpoint[EncoderConfig], ImagePreprocessing]:
    """Return a validated directory, and its preprocessing. Raises BadCheckpoint with one line that names the file and
    the fault."""
    path = directory / CONFIG_FILE
    document = read_json_object(path)
    config = _read_config(path, _object(path, document, "model_cfg"))
    files = digested_files(directory, (CONFIG_FILE, *DIGESTED_FILES))

    def renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(_renamed(directory, tensors, config))

    checkpoint = load_checkpoint(directory, directory.name, files, config, expected_shapes(config), renamed)
    return checkpoint, _preprocessing(path, document, config.image_size)


def _object(path: Path, document: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key)
    if not isinstance(found, dict):
        raise BadCheckpoint(f"{path}: {key} must be an object, got {found!r:.80}")
    return found


def _section(path: Path, model: Mapping[str, Any], key: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    given = _object(path, model, key)
    unknown = sorted(name for name, value in given.items() if name not in {*defaults, "mlp_ratio"} and value)
    if unknown:
        known = ", ".join(sorted(defaults))
        raise BadCheckpoint(f"{path}: {key} may have {known} and mlp_ratio, got {unknown[0]!r:.40}")
    return {**defaults, **given}


def _read_config(path: Path, model: Mapping[str, Any]) -> EncoderConfig:
    if unknown := sorted(model.keys() - _MODEL_KEYS):
        raise BadCheckpoint(f"{path}: model_cfg may have {', '.join(sorted(_MODEL_KEYS))}, got {unknown[0]!r:.40}")
    text = _section(path, model, "text_cfg", TEXT_DEFAULTS)
    vision = _section(path, model, "vision_cfg", VISION_DEFAULTS)
    activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
    width, head_width = positive(path, vision, "width"), positive(path, vision, "head_width")
    return EncoderConfig(
        text=_tower(path, text, positive(path, text, "heads"), activation),
        vision=_tower(path, vision, max(width // head_width, 1), activation),
        vocab_size=positive(path, text, "vocab_size"),
        max_position_embeddings=positive(path, text, "context_length"),
        # open_clip takes the state at the highest id, which is the end token's.
        eos_token_id=LEGACY_END_TOKEN,
        num_channels=3,
        image_size=positive(path, vision, "image_size"),
        patch_size=positive(path, vision, "patch_size"),
        projection_dim=positive(path, model, "embed_dim"),
    )


def _tower(path: Path, section: Mapping[str, Any], heads: int, activation: str) -> TowerConfig:
    width, ratio = positive(path, section, "width"), section.get("mlp_ratio", MLP_RATIO)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 64:
        raise BadCheckpoint(f"{path}: mlp_ratio must be above 0 and at most 64, got {ratio!r:.40}")
    if width % heads:
        raise BadCheckpoint(f"{path}: width must be a multiple of the number of heads, {heads}, got {width}")
    return TowerConfig(width, int(width * ratio), positive(path, section, "layers"), heads, _EPSILON, activation)


def _renamed(directory: Path, tensors: Mapping[str, Tensor], config: EncoderConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors by transformers' names. Raises BadCheckpoint, naming a missing tensor as open_clip does."""

    def found(name: str) -> Tensor:
        if name not in tensors:
            raise BadCheckpoint(f"{directory}: tensor {name} is missing")
        return tensors[name]

    yield from ((name, found(given)) for name, given in _SINGLE.items())
    yield from ((name, found(given).T) for name, given in _TURNED.items())
    towers = (("text_model.", "", config.text), ("vision_model.", "visual.", config.vision))
    for model, given_model, tower in towers:
        for index in range(tower.num_hidden_layers):
            block = f"{model}encoder.layers.{index}."
            given_block = f"{given_model}transformer.resblocks.{index}."
            for part in ("weight", "bias"):
                for name, given in _BLOCK.items():
                    yield f"{block}{name}.{part}", found(f"{given_block}{given}.{part}")
                stacked = found(f"{given_block}attn.in_proj_{part}").chunk(len(_STACKED))
                yield from ((f"{block}{name}.{part}", one) for name, one in zip(_STACKED, stacked, strict=True))


def _preprocessing(path: Path, document: Mapping[str, Any], image_size: int) -> ImagePreprocessing:
    """Return the steps of `preprocess_cfg`: the shortest edge is resized, the centre is cropped."""
    given = document.get("preprocess_cfg") or {}
    if not isinstance(given, dict) or given.get("resize_mode", "shortest") not in ("shortest", "squash"):
        raise BadCheckpoint(f"{path}: preprocess_cfg must be an object with resize_mode shortest or squash")
    interpolation = given.get("interpolation", "bicubic")
    if interpolation not in _INTERPOLATIONS:
        known = ", ".join(_INTERPOLATIONS)
        raise BadCheckpoint(f"{path}: interpolation must be one of {known}, got {interpolation!r:.40}")
    squashed = given.get("resize_mode") == "squash"
    steps = {
        "size": {"height": image_size, "width": image_size} if squashed else {"shortest_edge": image_size},
        "crop_size": image_size,
        "resample": _INTERPOLATIONS[interpolation],
        "image_mean": given.get("mean") or CLIP_MEAN,
        "image_std": given.get("std") or CLIP_STD,
    }
    return replace(preprocessing_of(path, steps, image_size), rounds_crop=True)
