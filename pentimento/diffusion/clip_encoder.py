"""Implement CLIP's text encoder over the checkpoint's weights: the classes of transformers import its training code and
torch's compiler, which cost a worker more to import than all its other parts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

# Checkpoints from before 2023 state 2, different from their tokenizer; their end token is the highest id.
LEGACY_END_TOKEN = 2


def _quick_gelu(hidden: Tensor) -> Tensor:
    return hidden * torch.sigmoid(1.702 * hidden)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "quick_gelu": _quick_gelu,
        "gelu": functional.gelu,
        "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    }
)


def text_ends(ids: Tensor, end_token: int) -> Tensor:
    """Return the position of the first end token in each row of token ids (rows, tokens): (rows,)."""
    return (ids if end_token == LEGACY_END_TOKEN else (ids == end_token)).int().argmax(-1)


@dataclass(frozen=True)
class ClipTextConfig:
    """Hold a text encoder's config.json, by its own keys, with the defaults of transformers."""

    vocab_size: int = 49408
    hidden_size: int = 512
    intermediate_size: int = 2048
    projection_dim: int = 512
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    max_position_embeddings: int = 77
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    eos_token_id: int = 49407
    use_attention_mask: bool = False

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "ClipTextConfig":
        """Return the configuration stated in `stored`. Raises ValueError for an impossible one."""
        kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(cls)}
        config = cls(**{key: value for key, value in stored.items() if key in kinds})
        for key, kind in kinds.items():
            value: Any = getattr(config, key)
            if type(value) is not kind or (kind is int and key != "eos_token_id" and not value > 0):
                raise ValueError(f"{key}={value!r} is no {kind.__name__} that a CLIP text encoder can have")
        if config.hidden_size % config.num_attention_heads:
            raise ValueError("hidden_size must be a multiple of num_attention_heads")
        return config


class ClipOutput(NamedTuple):
    """Hold an encoder's output: `result` is the pooled projection (rows, width) of an encoder that projects, else the
    last states (rows, tokens, width); `hidden_states` are the embeddings and every layer's output, before the last
    norm."""

    result: Tensor
    hidden_states: tuple[Tensor, ...]


class ClipTextEncoder(nn.Module):
    """Encode token ids with the interface of transformers' `CLIPTextModel`, or of `CLIPTextModelWithProjection` if it
    `projects`; its parameters have the same names, without the prefix "text_model."."""

    def __init__(self, config: ClipTextConfig, *, projects: bool) -> None:
        super().__init__()
        self.config = config
        self.embeddings = _Embeddings(config)
        self.encoder = _Layers(config)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.text_projection = nn.Linear(config.hidden_size, config.projection_dim, bias=False) if projects else None

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, output_hidden_states: bool = False
    ) -> ClipOutput:
        """Return the output for token ids (rows, tokens); `attention_mask`, of the same shape, is 0 for padding tokens.
        The hidden states are always returned."""
        states = [self.embeddings(input_ids)]
        mask = _attention_mask(attention_mask)
        for layer in self.encoder.layers:
            states.append(layer(states[-1], mask))
        last: Tensor = self.final_layer_norm(states[-1])
        if self.text_projection is None:
            return ClipOutput(last, tuple(states))
        ends = last[torch.arange(len(last), device=last.device), text_ends(input_ids, self.config.eos_token_id)]
        return ClipOutput(self.text_projection(ends), tuple(states))


def _attention_mask(given: Tensor | None) -> Tensor | None:
    """Return the attention mask (rows, 1, tokens, tokens); None if it is plainly causal, which has a separate
    kernel."""
    if given is None or bool(given.all()):
        return None
    length = given.shape[-1]
    before = torch.ones(length, length, dtype=torch.bool, device=given.device).tril()
    return before & given.bool()[:, None, None, :]


class _Embeddings(nn.Module):
    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        self.token_embedding = _unset_embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = _unset_embedding(config.max_position_embeddings, config.hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        states: Tensor = self.token_embedding(ids) + self.position_embedding.weight[: ids.shape[-1]]
        return states


def _unset_embedding(row_count: int, width: int) -> nn.Embedding:
    """Return an embedding without the usual random values: to draw them on the device "meta", torch imports its
    compiler."""
    embedding: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(row_count, width), freeze=False)
    return embedding


class _Layers(nn.Module):
    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))


class _Layer(nn.Module):
    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.layer_norm1 = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.self_attn = _Attention(width, config.num_attention_heads)
        self.layer_norm2 = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.mlp = _Mlp(width, config.intermediate_size, ACTIVATIONS[config.hidden_act])

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        seen: Tensor = hidden + self.self_attn(self.layer_norm1(hidden), mask)
        result: Tensor = seen + self.mlp(self.layer_norm2(seen))
        return result


class _Attention(nn.Module):
    def __init__(self, width: int, head_count: int) -> None:
        super().__init__()
        self._head_count = head_count
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value = (self._heads(part(hidden)) for part in (self.q_proj, self.k_proj, self.v_proj))
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        result: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return result

    def _heads(self, part: Tensor) -> Tensor:
        parts: Tensor = part.unflatten(-1, (self._head_count, -1)).transpose(1, 2)
        return parts


class _Mlp(nn.Module):
    def __init__(self, width: int, inner_width: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._activate = activation
        self.fc1 = nn.Linear(width, inner_width)
        self.fc2 = nn.Linear(inner_width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.fc2(self._activate(self.fc1(hidden)))
        return result
