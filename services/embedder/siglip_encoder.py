"""Open a SiglipModel directory (Zhai et al., 2023) and embed texts and images, equal to transformers' SiglipModel.

Texts are padded to the full context and padding is not masked out, as in training; the state at the last position is
the text's. An image's vector is what a learnt probe reads from all patches.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from pentimento.diffusion.checkpoint import BadCheckpoint, read_json_object
from services.embedder.dual_encoder import DIGESTED_FILES, EncoderConfig, config_of, dual_shapes, section
from services.embedder.tower import (
    CLIP_LAYERS,
    EncoderCheckpoint,
    affine_of,
    digested_files,
    linear,
    load_checkpoint,
    open_tower,
)

# The defaults of transformers' SiglipTextConfig and SiglipVisionConfig.
TOWER_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
TEXT_DEFAULTS = {**TOWER_DEFAULTS, "vocab_size": 32000, "max_position_embeddings": 64}
VISION_DEFAULTS = {**TOWER_DEFAULTS, "num_channels": 3, "image_size": 224, "patch_size": 16, "vision_use_head": True}


def open_siglip(directory: Path) -> EncoderCheckpoint[EncoderConfig]:
    """Return a validated directory. Raises BadCheckpoint with one line that names the file and the fault."""
    files = digested_files(directory, DIGESTED_FILES)
    config = _read_config(directory / "config.json")
    return load_checkpoint(directory, directory.name, files, config, siglip_shapes(config))


class SiglipEncoder:
    """Unit-length features of texts and images. Call it on one thread, under `torch.inference_mode()`."""

    def __init__(self, checkpoint: EncoderCheckpoint[EncoderConfig], pad_token: int, device: torch.device) -> None:
        config, tensors = checkpoint.config, checkpoint.on(device)
        self._device = device
        self.dimension_count = config.projection_dim
        self._context, self._pad_token = config.max_position_embeddings, pad_token
        self._patch_size, self._head_count = config.patch_size, config.vision.num_attention_heads
        self._tensors = tensors
        self._text = open_tower(tensors, config.text, CLIP_LAYERS, "text_model.")
        self._vision = open_tower(tensors, config.vision, CLIP_LAYERS, "vision_model.")

    def embed_tokens(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return unit vectors (batch, dimension_count) of token ids, each text at most the context."""
        padded = [[*text, *[self._pad_token] * (self._context - len(text))] for text in texts]
        ids = torch.tensor(padded, device=self._device)
        tokens = functional.embedding(ids, self._tensors["text_model.embeddings.token_embedding.weight"])
        hidden = self._text.run(tokens + self._tensors["text_model.embeddings.position_embedding.weight"])
        last = self._text.norm(hidden[:, -1], affine_of(self._tensors, "text_model.final_layer_norm"))
        return functional.normalize(linear(last, affine_of(self._tensors, "text_model.head")), dim=-1)

    def embed_pixels(self, pixels: Tensor) -> Tensor:
        """Return unit vectors (batch, dimension_count) of pixels (batch, channels, image_size, image_size)."""
        patch = affine_of(self._tensors, "vision_model.embeddings.patch_embedding")
        patches = functional.conv2d(pixels.to(self._device), patch.weight, patch.bias, stride=self._patch_size)
        hidden = patches.flatten(2).transpose(1, 2)
        hidden = self._vision.run(hidden + self._tensors["vision_model.embeddings.position_embedding.weight"])
        hidden = self._vision.norm(hidden, affine_of(self._tensors, "vision_model.post_layernorm"))
        return functional.normalize(self._read_by_probe(hidden), dim=-1)

    def _read_by_probe(self, hidden: Tensor) -> Tensor:
        """Return (batch, width) of states (batch, patches, width): the probe attends to all patches."""
        head, (batch, length, width) = "vision_model.head", hidden.shape
        heads, weight = self._head_count, self._tensors[f"{head}.attention.in_proj_weight"]
        bias = self._tensors[f"{head}.attention.in_proj_bias"]
        query = functional.linear(self._tensors[f"{head}.probe"], weight[:width], bias[:width])
        query = query.view(1, 1, heads, width // heads).transpose(1, 2).expand(batch, -1, -1, -1)
        stacked = functional.linear(hidden, weight[width:], bias[width:]).view(batch, length, 2, heads, width // heads)
        key, value = stacked.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(batch, width)
        read = linear(mixed, affine_of(self._tensors, f"{head}.attention.out_proj"))
        normed = self._vision.norm(read, affine_of(self._tensors, f"{head}.layernorm"))
        inner = self._vision.activation(linear(normed, affine_of(self._tensors, f"{head}.mlp.fc1")))
        return read + linear(inner, affine_of(self._tensors, f"{head}.mlp.fc2"))


def _read_config(path: Path) -> EncoderConfig:
    document = read_json_object(path)
    text = section(document, "text_config", TEXT_DEFAULTS)
    vision = section(document, "vision_config", VISION_DEFAULTS)
    if vision["vision_use_head"] is not True:
        raise BadCheckpoint(f"{path}: vision_use_head must be true, got {vision['vision_use_head']!r:.40}")
    if text.get("projection_size") is None:
        text["projection_size"] = text["hidden_size"]
    config = config_of(path, text, vision, {"projection_dim": text["projection_size"]}, 0)
    if config.projection_dim != config.vision.hidden_size:
        wanted = f"must be the vision tower's hidden_size, {config.vision.hidden_size}"
        raise BadCheckpoint(f"{path}: projection_size {wanted}, got {config.projection_dim}")
    return config


def siglip_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return every tensor that is used, by transformers' name, with its shape."""
    text, vision, patch = config.text.hidden_size, config.vision.hidden_size, config.patch_size
    inner, head = config.vision.intermediate_size, "vision_model.head"
    probe: dict[str, tuple[int, ...]] = {
        f"{head}.probe": (1, 1, vision),
        f"{head}.attention.in_proj_weight": (3 * vision, vision),
        f"{head}.attention.in_proj_bias": (3 * vision,),
    }
    layers: dict[str, tuple[int, ...]] = {
        "text_model.final_layer_norm": (text,),
        "text_model.head": (config.projection_dim, text),
        "vision_model.embeddings.patch_embedding": (vision, config.num_channels, patch, patch),
        "vision_model.post_layernorm": (vision,),
        f"{head}.attention.out_proj": (vision, vision),
        f"{head}.layernorm": (vision,),
        f"{head}.mlp.fc1": (inner, vision),
        f"{head}.mlp.fc2": (vision, inner),
    }
    return probe | dual_shapes(config, layers)
