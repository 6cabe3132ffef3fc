"""A stock CLIPModel directory: configuration, weights (safetensors only) and the digest of what is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint, check_inside, digest_files, read_json_object
from services.embedder.encoder_files import epsilon, positive, read_weights, used_tensors

# What transformers' CLIPTextConfig and CLIPVisionConfig take where config.json is silent.
TEXT_DEFAULTS = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "eos_token_id": 49407,
}
VISION_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
DIGESTED_FILES = (
    "config.json",
    "model.safetensors.index.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)


@dataclass(frozen=True)
class TowerConfig:
    """A transformer of CLIP's kind; `hidden_act` by transformers' name."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    layer_norm_eps: float
    hidden_act: str


@dataclass(frozen=True)
class EncoderConfig:
    """Both towers and what is around them; `image_size` and `patch_size` in pixels."""

    text: TowerConfig
    vision: TowerConfig
    vocab_size: int
    max_position_embeddings: int
    eos_token_id: int
    num_channels: int
    image_size: int
    patch_size: int
    projection_dim: int


@dataclass(frozen=True)
class EncoderCheckpoint:
    """`tensors` are float32 by transformers' names; `digest` covers the files of `digest_files`."""

    name: str
    directory: Path
    config: EncoderConfig
    tensors: Mapping[str, Tensor] = field(repr=False)
    digest: str


def open_encoder(directory: Path) -> EncoderCheckpoint:
    """Read and check a directory. Raises BadCheckpoint with one line that names the file and what is wrong."""
    texts = [directory / name for name in DIGESTED_FILES if (directory / name).is_file()]
    check_inside(directory, [*texts, *directory.glob("*.safetensors")])
    config = read_config(directory / "config.json")
    files, tensors = read_weights(directory)
    digest = digest_files(directory, texts + files)
    return EncoderCheckpoint(
        directory.name, directory, config, used_tensors(directory, expected_shapes(config), tensors), digest
    )


def read_config(path: Path) -> EncoderConfig:
    document = read_json_object(path)
    if document.get("model_type") != "clip":
        raise BadCheckpoint(f"{path}: model_type must be 'clip' or 'bert', got {document.get('model_type')!r}")
    text = _section(document, "text_config", TEXT_DEFAULTS)
    vision = _section(document, "vision_config", VISION_DEFAULTS)
    return EncoderConfig(
        text=_tower(path, text),
        vision=_tower(path, vision),
        vocab_size=positive(path, text, "vocab_size"),
        max_position_embeddings=positive(path, text, "max_position_embeddings"),
        eos_token_id=positive(path, text, "eos_token_id"),
        num_channels=positive(path, vision, "num_channels"),
        image_size=positive(path, vision, "image_size"),
        patch_size=positive(path, vision, "patch_size"),
        projection_dim=positive(path, {"projection_dim": 512, **document}, "projection_dim"),
    )


def _section(document: Mapping[str, Any], name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Old checkpoints carry `text_config_dict` as well; where they do, it alone counts, as in transformers."""
    given = document.get(f"{name}_dict") or document.get(name) or {}
    return {**defaults, **given}


def _tower(path: Path, section: Mapping[str, Any]) -> TowerConfig:
    tower = TowerConfig(
        hidden_size=positive(path, section, "hidden_size"),
        intermediate_size=positive(path, section, "intermediate_size"),
        num_hidden_layers=positive(path, section, "num_hidden_layers"),
        num_attention_heads=positive(path, section, "num_attention_heads"),
        layer_norm_eps=epsilon(path, section),
        hidden_act=str(section["hidden_act"]),
    )
    if tower.hidden_size % tower.num_attention_heads:
        raise BadCheckpoint(f"{path}: hidden_size must be a multiple of num_attention_heads")
    return tower


def expected_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that is used, by transformers' name, with its shape."""
    text, vision = config.text.hidden_size, config.vision.hidden_size
    patches = (config.image_size // config.patch_size) ** 2
    shapes: dict[str, tuple[int, ...]] = {
        "text_projection.weight": (config.projection_dim, text),
        "visual_projection.weight": (config.projection_dim, vision),
        "text_model.embeddings.token_embedding.weight": (config.vocab_size, text),
        "text_model.embeddings.position_embedding.weight": (config.max_position_embeddings, text),
        "vision_model.embeddings.class_embedding": (vision,),
        "vision_model.embeddings.patch_embedding.weight": (
            *(vision, config.num_channels),
            *(config.patch_size, config.patch_size),
        ),
        "vision_model.embeddings.position_embedding.weight": (patches + 1, vision),
    }
    norms = {"text_model.final_layer_norm": text, "vision_model.pre_layrnorm": vision}
    for name, size in {**norms, "vision_model.post_layernorm": vision}.items():
        shapes |= {f"{name}.weight": (size,), f"{name}.bias": (size,)}
    for model, tower in (("text_model", config.text), ("vision_model", config.vision)):
        for index in range(tower.num_hidden_layers):
            shapes |= _layer_shapes(f"{model}.encoder.layers.{index}", tower)
    return shapes


def _layer_shapes(prefix: str, tower: TowerConfig) -> dict[str, tuple[int, ...]]:
    width, inner = tower.hidden_size, tower.intermediate_size
    linears = {f"self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")}
    linears |= {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}.{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{prefix}.{name}.bias": shape[:1] for name, shape in linears.items()}
    for norm in ("layer_norm1", "layer_norm2"):
        shapes |= {f"{prefix}.{norm}.weight": (width,), f"{prefix}.{norm}.bias": (width,)}
    return shapes
