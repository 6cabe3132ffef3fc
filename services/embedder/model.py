"""The encoder with its tokenizer and preprocessing: what the model thread runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.domain.errors import Internal
from services.embedder.checkpoint import EncoderConfig, open_encoder
from services.embedder.dual_encoder import LEGACY_END_TOKEN, DualEncoder
from services.embedder.preprocessing import ImagePreprocessing, read_preprocessing
from services.embedder.tokenization import TextTokenizer, open_tokenizer

# What a unit vector's length may be off by; a zero vector or NaN is far outside.
LENGTH_TOLERANCE = 1e-3


@dataclass(frozen=True)
class EmbeddingModel:
    """Everything that a directory gives. The two methods run on the model thread, inside inference_mode."""

    name: str
    digest: str
    encoder: DualEncoder
    tokenizer: TextTokenizer
    preprocessing: ImagePreprocessing

    def embed_texts(self, texts: Sequence[str]) -> list[bytes]:
        """A unit vector a text, float32 little-endian."""
        return _as_bytes(self.encoder.embed_tokens([self.tokenizer.encode(text) for text in texts]))

    def embed_images(self, images: Sequence[NDArray[np.float32]]) -> list[bytes]:
        """A unit vector an image of preprocessed pixels (3, height, width)."""
        return _as_bytes(self.encoder.embed_pixels(torch.from_numpy(np.stack(images))))


def open_model(directory: Path) -> EmbeddingModel:
    """Load, check and try out a CLIPModel directory. Raises BadCheckpoint with one line; takes seconds."""
    checkpoint = open_encoder(directory)
    config = checkpoint.config
    preprocessing = read_preprocessing(directory / "preprocessor_config.json", config.image_size)
    tokenizer = open_tokenizer(directory, config.max_position_embeddings)
    _check_tokenizer(directory, tokenizer, config)
    model = EmbeddingModel(checkpoint.name, checkpoint.digest, DualEncoder(checkpoint), tokenizer, preprocessing)
    _try_out(directory, model, config.image_size)
    return model


def _check_tokenizer(directory: Path, tokenizer: TextTokenizer, config: EncoderConfig) -> None:
    ids = tokenizer.encode("a picture of 1 cat")
    ends_well = ids[-1] == (max(ids) if config.eos_token_id == LEGACY_END_TOKEN else config.eos_token_id)
    if not ends_well or max(ids) >= config.vocab_size:
        raise BadCheckpoint(f"{directory}: its tokenizer does not fit its config.json")


def _try_out(directory: Path, model: EmbeddingModel, image_size: int) -> None:
    """The first text and image warm the kernels, and show whether the weights are sound."""
    try:
        with torch.inference_mode():
            model.embed_texts(["a picture"])
            model.embed_images([np.zeros((3, image_size, image_size), np.float32)])
    except (Internal, RuntimeError, IndexError) as error:
        raise BadCheckpoint(f"{directory}: its weights give no usable embedding ({error})") from None


def _as_bytes(vectors: Tensor) -> list[bytes]:
    """Internal rather than a vector that is not of unit length: such a one would poison an index."""
    lengths: Any = vectors.norm(dim=-1)
    if not bool(((lengths - 1).abs() < LENGTH_TOLERANCE).all()):
        raise Internal("EMBEDDING_NOT_FINITE", "the encoder gave a vector that is not of unit length")
    return [row.tobytes() for row in vectors.numpy().astype("<f4", copy=False)]
