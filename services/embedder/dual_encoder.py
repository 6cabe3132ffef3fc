"""CLIP's two towers as functions over their weights (Radford et al., 2021), equal to transformers' CLIPModel.

Written out because the service needs nothing else of transformers: it starts in a third of the time, in little more
than half of the memory, and a call has none of the library's bookkeeping around it. Texts are padded on the right only:
attention in the text tower is causal and a text is read off at its first end token, so padding cannot reach the result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.clip_encoder import ACTIVATIONS, text_ends
from services.embedder.checkpoint import EncoderCheckpoint, TowerConfig


@dataclass(frozen=True)
class Affine:
    """Weight and bias of a linear layer or a layer norm."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Layer:
    """One block; `attention_in` stacks query, key and value: (3 * width, width)."""

    norm1: Affine
    attention_in: Affine
    attention_out: Affine
    norm2: Affine
    expand: Affine
    contract: Affine


@dataclass(frozen=True)
class Tower:
    layers: tuple[Layer, ...]
    head_count: int
    epsilon: float
    activation: Callable[[Tensor], Tensor]
    causal: bool

    def run(self, hidden: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        for layer in self.layers:
            hidden = self._block(hidden, layer)
        return hidden

    def norm(self, hidden: Tensor, affine: Affine) -> Tensor:
        return functional.layer_norm(hidden, affine.weight.shape, affine.weight, affine.bias, self.epsilon)

    def _block(self, hidden: Tensor, layer: Layer) -> Tensor:
        hidden = hidden + self._attention(self.norm(hidden, layer.norm1), layer)
        inner = self.activation(linear(self.norm(hidden, layer.norm2), layer.expand))
        return hidden + linear(inner, layer.contract)

    def _attention(self, hidden: Tensor, layer: Layer) -> Tensor:
        batch, length, width = hidden.shape
        stacked = linear(hidden, layer.attention_in).view(batch, length, 3, self.head_count, width // self.head_count)
        query, key, value = stacked.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return linear(mixed.transpose(1, 2).reshape(batch, length, width), layer.attention_out)


class DualEncoder:
    """Unit-length features of texts and images. Call it on one thread, under `torch.inference_mode()`."""

    def __init__(self, checkpoint: EncoderCheckpoint) -> None:
        config, tensors = checkpoint.config, checkpoint.tensors
        self.dimension_count = config.projection_dim
        self.max_tokens = config.max_position_embeddings
        self._end_token = config.eos_token_id
        self._patch_size = config.patch_size
        self._tensors = tensors
        self._text = _tower(tensors, "text_model", config.text, causal=True)
        self._vision = _tower(tensors, "vision_model", config.vision, causal=False)

    def embed_tokens(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Token ids, each ending in the end token, to unit vectors (batch, dimension_count)."""
        ids = self._padded(texts)
        tokens = functional.embedding(ids, self._tensors["text_model.embeddings.token_embedding.weight"])
        positions = self._tensors["text_model.embeddings.position_embedding.weight"][: ids.shape[1]]
        hidden = self._text.run(tokens + positions)
        pooled = hidden[torch.arange(len(hidden)), text_ends(ids, self._end_token)]
        pooled = self._text.norm(pooled, affine_of(self._tensors, "text_model.final_layer_norm"))
        return functional.normalize(functional.linear(pooled, self._tensors["text_projection.weight"]), dim=-1)

    def embed_pixels(self, pixels: Tensor) -> Tensor:
        """Normalised pixels (batch, channels, image_size, image_size) to unit vectors (batch, dimension_count)."""
        kernel = self._tensors["vision_model.embeddings.patch_embedding.weight"]
        patches = functional.conv2d(pixels, kernel, stride=self._patch_size).flatten(2).transpose(1, 2)
        first = self._tensors["vision_model.embeddings.class_embedding"].expand(len(pixels), 1, -1)
        hidden = torch.cat([first, patches], dim=1)
        hidden = hidden + self._tensors["vision_model.embeddings.position_embedding.weight"]
        hidden = self._vision.norm(hidden, affine_of(self._tensors, "vision_model.pre_layrnorm"))
        pooled = self._vision.run(hidden)[:, 0]
        pooled = self._vision.norm(pooled, affine_of(self._tensors, "vision_model.post_layernorm"))
        return functional.normalize(functional.linear(pooled, self._tensors["visual_projection.weight"]), dim=-1)

    def _padded(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """(batch, longest); the padding is the end token, of which only the first counts."""
        longest = max(map(len, texts))
        return torch.tensor([[*text, *[text[-1]] * (longest - len(text))] for text in texts])


def _tower(tensors: Mapping[str, Tensor], model: str, config: TowerConfig, causal: bool) -> Tower:
    activation = activation_of(config.hidden_act)
    prefixes = [f"{model}.encoder.layers.{index}" for index in range(config.num_hidden_layers)]
    layers = tuple(_layer(tensors, prefix) for prefix in prefixes)
    return Tower(layers, config.num_attention_heads, config.layer_norm_eps, activation, causal)


def _layer(tensors: Mapping[str, Tensor], prefix: str) -> Layer:
    inputs = [affine_of(tensors, f"{prefix}.self_attn.{name}_proj") for name in ("q", "k", "v")]
    return Layer(
        norm1=affine_of(tensors, f"{prefix}.layer_norm1"),
        attention_in=Affine(torch.cat([part.weight for part in inputs]), torch.cat([part.bias for part in inputs])),
        attention_out=affine_of(tensors, f"{prefix}.self_attn.out_proj"),
        norm2=affine_of(tensors, f"{prefix}.layer_norm2"),
        expand=affine_of(tensors, f"{prefix}.mlp.fc1"),
        contract=affine_of(tensors, f"{prefix}.mlp.fc2"),
    )


def activation_of(hidden_act: str) -> Callable[[Tensor], Tensor]:
    """Return the function of transformers' name. Raises BadCheckpoint for one that is not built here."""
    if hidden_act not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise BadCheckpoint(f"config.json: hidden_act {hidden_act!r} is not one of {known}")
    return ACTIVATIONS[hidden_act]


def affine_of(tensors: Mapping[str, Tensor], name: str) -> Affine:
    """Return the layer `name` of the checkpoint."""
    return Affine(tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def linear(hidden: Tensor, affine: Affine) -> Tensor:
    """Return `hidden` (…, width) through a linear layer."""
    return functional.linear(hidden, affine.weight, affine.bias)
