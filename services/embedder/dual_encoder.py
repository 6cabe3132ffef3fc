"""Open a CLIPModel directory (Radford et al., 2021) and embed texts and images, equal to transformers' CLIPModel.

Texts are padded on the right only: attention in the text tower is causal and the state of a text's first end token is
its result, so padding cannot reach it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pentimento.diffusion.checkpoint import read_json_object
from pentimento.diffusion.clip_encoder import text_ends
from services.embedder.tower import (
    CLIP_LAYERS,
    EncoderCheckpoint,
    TowerConfig,
    affine_of,
    digested_files,
    load_checkpoint,
    open_tower,
    positive,
    read_tower,
    tower_shapes,
)

# The defaults of transformers' CLIPTextConfig and CLIPVisionConfig.
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
class EncoderConfig:
    """Both towers and the sizes around them; `image_size` and `patch_size` in pixels. `projection_dim`: the width of
    both vectors; `eos_token_id` 0: the context is padded."""

    text: TowerConfig
    vision: TowerConfig
    vocab_size: int
    max_position_embeddings: int
    eos_token_id: int
    num_channels: int
    image_size: int
    patch_size: int
    projection_dim: int


def open_encoder(directory: Path) -> EncoderCheckpoint[EncoderConfig]:
    """Return a validated directory. Raises BadCheckpoint with one line that names the file and the fault."""
    files = digested_files(directory, DIGESTED_FILES)
    config = _read_config(directory / "config.json")
    return load_checkpoint(directory, directory.name, files, config, expected_shapes(config))


class DualEncoder:
    """Unit-length features of texts and images. Call it on one thread, under `torch.inference_mode()`."""

    def __init__(self, checkpoint: EncoderCheckpoint[EncoderConfig], device: torch.device) -> None:
        config, tensors = checkpoint.config, checkpoint.on(device)
        self._device = device
        self.dimension_count = config.projection_dim
        self._end_token = config.eos_token_id
        self._patch_size = config.patch_size
        self._tensors = tensors
        self._text = open_tower(tensors, config.text, CLIP_LAYERS, "text_model.", causal=True)
        self._vision = open_tower(tensors, config.vision, CLIP_LAYERS, "vision_model.")

    def embed_tokens(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return unit vectors (batch, dimension_count) of token ids, each text ending in the end token."""
        longest = max(map(len, texts))
        # The padding is the end token; only the first end token counts.
        ids = torch.tensor([[*text, *[text[-1]] * (longest - len(text))] for text in texts], device=self._device)
        tokens = functional.embedding(ids, self._tensors["text_model.embeddings.token_embedding.weight"])
        positions = self._tensors["text_model.embeddings.position_embedding.weight"][: ids.shape[1]]
        hidden = self._text.run(tokens + positions)
        pooled = hidden[torch.arange(len(hidden), device=self._device), text_ends(ids, self._end_token)]
        pooled = self._text.norm(pooled, affine_of(self._tensors, "text_model.final_layer_norm"))
        return functional.normalize(functional.linear(pooled, self._tensors["text_projection.weight"]), dim=-1)

    def embed_pixels(self, pixels: Tensor) -> Tensor:
        """Return unit vectors (batch, dimension_count) of pixels (batch, channels, image_size, image_size)."""
        kernel = self._tensors["vision_model.embeddings.patch_embedding.weight"]
        patches = functional.conv2d(pixels.to(self._device), kernel, stride=self._patch_size).flatten(2).transpose(1, 2)
        first = self._tensors["vision_model.embeddings.class_embedding"].expand(len(pixels), 1, -1)
        hidden = torch.cat([first, patches], dim=1)
        hidden = hidden + self._tensors["vision_model.embeddings.position_embedding.weight"]
        hidden = self._vision.norm(hidden, affine_of(self._tensors, "vision_model.pre_layrnorm"))
        pooled = self._vision.run(hidden)[:, 0]
        pooled = self._vision.norm(pooled, affine_of(self._tensors, "vision_model.post_layernorm"))
        return functional.normalize(functional.linear(pooled, self._tensors["visual_projection.weight"]), dim=-1)


def _read_config(path: Path) -> EncoderConfig:
    document = read_json_object(path)
    text = section(document, "text_config", TEXT_DEFAULTS)
    vision = section(document, "vision_config", VISION_DEFAULTS)
    eos_token_id = positive(path, text, "eos_token_id")
    return config_of(path, text, vision, {"projection_dim": 512, **document}, eos_token_id)


def config_of(
    path: Path, text: Mapping[str, Any], vision: Mapping[str, Any], document: Mapping[str, Any], eos: int
) -> EncoderConfig:
    """Return the sizes in the two sections, and the `projection_dim` of the document. Raises BadCheckpoint."""
    return EncoderConfig(
        text=read_tower(path, text),
        vision=read_tower(path, vision),
        vocab_size=positive(path, text, "vocab_size"),
        max_position_embeddings=positive(path, text, "max_position_embeddings"),
        eos_token_id=eos,
        num_channels=positive(path, vision, "num_channels"),
        image_size=positive(path, vision, "image_size"),
        patch_size=positive(path, vision, "patch_size"),
        projection_dim=positive(path, document, "projection_dim"),
    )


def section(document: Mapping[str, Any], name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section; an old checkpoint's `text_config_dict` replaces its `text_config`, as in transformers."""
    given = document.get(f"{name}_dict") or document.get(name) or {}
    return {**defaults, **given}


def expected_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return every tensor that is used, by transformers' name, with its shape."""
    text, vision, patch = config.text.hidden_size, config.vision.hidden_size, config.patch_size
    around: dict[str, tuple[int, ...]] = {
        "text_projection.weight": (config.projection_dim, text),
        "visual_projection.weight": (config.projection_dim, vision),
        "vision_model.embeddings.class_embedding": (vision,),
        "vision_model.embeddings.patch_embedding.weight": (vision, config.num_channels, patch, patch),
    }
    norms = {"text_model.final_layer_norm": (text,), "vision_model.pre_layrnorm": (vision,)}
    return around | dual_shapes(config, {**norms, "vision_model.post_layernorm": (vision,)}, extra_positions=1)


def dual_shapes(
    config: EncoderConfig, affine: Mapping[str, tuple[int, ...]], *, extra_positions: int = 0
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of both towers, their embeddings, and the layers with a bias. An image has `extra_positions`
    besides its patches."""
    text, vision = config.text.hidden_size, config.vision.hidden_size
    position_count = (config.image_size // config.patch_size) ** 2 + extra_positions
    shapes: dict[str, tuple[int, ...]] = {
        "text_model.embeddings.token_embedding.weight": (config.vocab_size, text),
        "text_model.embeddings.position_embedding.weight": (config.max_position_embeddings, text),
        "vision_model.embeddings.position_embedding.weight": (position_count, vision),
    }
    for name, shape in affine.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    shapes |= tower_shapes(config.text, CLIP_LAYERS, "text_model.")
    return shapes | tower_shapes(config.vision, CLIP_LAYERS, "vision_model.")
