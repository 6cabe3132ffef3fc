"""BERT as a sentence encoder over its weights (Reimers and Gurevych, 2019), equal to sentence-transformers.

Written out for the reasons that CLIP's towers are. Attention looks both ways here, so the padding of a batch is masked
out of it and out of the mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pentimento.diffusion.checkpoint import BadCheckpoint
from services.embedder.dual_encoder import Affine, activation_of, affine_of, linear
from services.embedder.sentence_checkpoint import Pooling, SentenceCheckpoint


@dataclass(frozen=True)
class SentenceLayer:
    """One block, normalised after each half; `attention_in` stacks query, key and value: (3 * width, width)."""

    attention_in: Affine
    attention_out: Affine
    norm1: Affine
    expand: Affine
    contract: Affine
    norm2: Affine


class SentenceEncoder:
    """Unit-length vectors of texts. Call it on one thread, under `torch.inference_mode()`."""

    def __init__(self, checkpoint: SentenceCheckpoint) -> None:
        self._config, self._tensors = checkpoint.config, checkpoint.tensors
        tower = checkpoint.config.tower
        self.dimension_count = tower.hidden_size
        self._activation = activation_of(tower.hidden_act)
        self._layers = tuple(
            _layer(checkpoint.tensors, f"encoder.layer.{index}") for index in range(tower.num_hidden_layers)
        )

    def embed_tokens(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return unit vectors (batch, dimension_count) of token ids with their special tokens."""
        longest = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
        lengths = torch.tensor([len(text) for text in texts])
        is_token = torch.arange(longest) < lengths[:, None]
        hidden = self._embedded(ids)
        for layer in self._layers:
            hidden = self._block(hidden, layer, is_token[:, None, None, :])
        return functional.normalize(self._pooled(hidden, is_token), dim=-1)

    def _embedded(self, ids: Tensor) -> Tensor:
        """(batch, length) to (batch, length, width). All tokens are of the first segment."""
        words = functional.embedding(ids, self._tensors["embeddings.word_embeddings.weight"])
        positions = self._tensors["embeddings.position_embeddings.weight"][: ids.shape[1]]
        segment = self._tensors["embeddings.token_type_embeddings.weight"][0]
        return self._norm(words + positions + segment, affine_of(self._tensors, "embeddings.LayerNorm"))

    def _block(self, hidden: Tensor, layer: SentenceLayer, mask: Tensor) -> Tensor:
        hidden = self._norm(hidden + self._attention(hidden, layer, mask), layer.norm1)
        inner = self._activation(linear(hidden, layer.expand))
        return self._norm(hidden + linear(inner, layer.contract), layer.norm2)

    def _attention(self, hidden: Tensor, layer: SentenceLayer, mask: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        heads = self._config.tower.num_attention_heads
        stacked = linear(hidden, layer.attention_in).view(batch, length, 3, heads, width // heads)
        query, key, value = stacked.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return linear(mixed.transpose(1, 2).reshape(batch, length, width), layer.attention_out)

    def _pooled(self, hidden: Tensor, is_token: Tensor) -> Tensor:
        if self._config.pooling is Pooling.CLS:
            return hidden[:, 0]
        weights = is_token[:, :, None].to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)

    def _norm(self, hidden: Tensor, affine: Affine) -> Tensor:
        epsilon = self._config.tower.layer_norm_eps
        return functional.layer_norm(hidden, affine.weight.shape, affine.weight, affine.bias, epsilon)


def check_token_ids(checkpoint: SentenceCheckpoint, ids: Sequence[int]) -> None:
    """Raise BadCheckpoint where a text's token ids cannot be of this encoder: special tokens absent, or ids beyond its
    vocabulary."""
    if len(ids) < 3 or max(ids) >= checkpoint.config.vocab_size:
        raise BadCheckpoint(f"{checkpoint.directory}: its tokenizer does not fit its config.json")


def _layer(tensors: Mapping[str, Tensor], prefix: str) -> SentenceLayer:
    inputs = [affine_of(tensors, f"{prefix}.attention.self.{name}") for name in ("query", "key", "value")]
    return SentenceLayer(
        attention_in=Affine(torch.cat([part.weight for part in inputs]), torch.cat([part.bias for part in inputs])),
        attention_out=affine_of(tensors, f"{prefix}.attention.output.dense"),
        norm1=affine_of(tensors, f"{prefix}.attention.output.LayerNorm"),
        expand=affine_of(tensors, f"{prefix}.intermediate.dense"),
        contract=affine_of(tensors, f"{prefix}.output.dense"),
        norm2=affine_of(tensors, f"{prefix}.output.LayerNorm"),
    )
