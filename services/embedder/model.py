"""An encoder with its tokenizer and, for an image tower, preprocessing. The model thread runs it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint, read_json_object
from pentimento.diffusion.clip_encoder import LEGACY_END_TOKEN
from pentimento.diffusion.preprocessing import ImagePreprocessing, read_preprocessing, to_pixels
from pentimento.domain.errors import FailedPrecondition, Internal
from pentimento.domain.reasons import Reason
from pentimento.images.decoding import decode
from services.embedder.dual_encoder import DualEncoder, EncoderConfig, open_encoder
from services.embedder.open_clip_encoder import CONFIG_FILE as OPEN_CLIP_FILE
from services.embedder.open_clip_encoder import open_open_clip
from services.embedder.sentence_encoder import SentenceEncoder, check_token_ids, open_sentence_encoder
from services.embedder.siglip_encoder import SiglipEncoder, open_siglip
from services.embedder.tokenization import TextTokenizer, open_tokenizer, pad_token_of
from services.embedder.tower import EncoderCheckpoint

# The tolerated error of a unit vector's length; a zero vector or NaN is far outside.
LENGTH_TOLERANCE = 1e-3
CPU = torch.device("cpu")
SAMPLE_TEXT = "an image of 1 cat"


class TextTower(Protocol):
    """The part that every encoder has."""

    @property
    def dimension_count(self) -> int:
        """Return the width of its vectors."""

    def embed_tokens(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return unit vectors (batch, dimension_count) of token ids."""


class PixelTower(Protocol):
    """The part of a dual encoder that sees images."""

    def embed_pixels(self, pixels: Tensor) -> Tensor:
        """Return unit vectors (batch, dimension_count) of pixels (batch, channels, image_size, image_size)."""


class ImageSide(Protocol):
    """The part that takes images into the same space."""

    def prepare(self, image: bytes, field: str) -> Any:
        """Return what `embed` takes of an encoded image, off the model thread. Raises InvalidArgument naming the
        field."""

    def embed(self, prepared: Sequence[Any]) -> list[bytes]:
        """Return a unit vector per prepared image, float32 little-endian. The model thread runs it."""


@dataclass(frozen=True)
class ImageTower:
    """The image tower of a dual encoder, and how it wants its pixels."""

    tower: PixelTower
    preprocessing: ImagePreprocessing

    def prepare(self, image: bytes, field: str) -> NDArray[np.float32]:
        """Return preprocessed pixels (3, height, width). Raises InvalidArgument naming the field."""
        return decode(image, field, lambda picture: to_pixels(picture, self.preprocessing))

    def embed(self, prepared: Sequence[NDArray[np.float32]]) -> list[bytes]:
        """Return a unit vector per image of preprocessed pixels."""
        return _as_bytes(self.tower.embed_pixels(torch.from_numpy(np.stack(prepared))))


@dataclass(frozen=True)
class EmbeddingModel:
    """A loaded directory; `images` is None for a sentence encoder. The two `embed_…` methods run on the
    model thread, inside inference_mode."""

    name: str
    digest: str
    encoder: TextTower
    tokenizer: TextTokenizer
    images: ImageSide | None = None

    def embed_texts(self, texts: Sequence[str]) -> list[bytes]:
        """Return a unit vector per text, float32 little-endian."""
        return _as_bytes(self.encoder.embed_tokens([self.tokenizer.encode(text) for text in texts]))

    def embed_images(self, images: Sequence[Any]) -> list[bytes]:
        """Return a unit vector per image that `image_side` prepared."""
        return self.image_side().embed(images)

    def image_side(self) -> ImageSide:
        """Return the image tower. Raises FailedPrecondition NO_IMAGE_TOWER if the encoder embeds texts only."""
        if self.images is None:
            message = f"encoder {self.name} embeds texts only; serve a CLIP or SigLIP directory to embed images"
            raise FailedPrecondition(Reason.NO_IMAGE_TOWER, message)
        return self.images


def open_model(directory: Path, device: torch.device = CPU) -> EmbeddingModel:
    """Return a loaded, checked and tried out directory of transformers (CLIPModel, SiglipModel), open_clip or
    sentence-transformers (BERT). Raises BadCheckpoint with one line; takes seconds."""
    path = directory / "config.json"
    if not path.is_file() and (directory / OPEN_CLIP_FILE).is_file():
        return _open_open_clip_model(directory, device)
    kind = read_json_object(path).get("model_type")
    if kind not in _OPENERS:
        known = ", ".join(map(repr, _OPENERS))
        raise BadCheckpoint(f"{path}: model_type must be one of {known}, got {kind!r:.80}")
    return _OPENERS[kind](directory, device)


def _open_sentence_model(directory: Path, device: torch.device) -> EmbeddingModel:
    checkpoint = open_sentence_encoder(directory)
    tokenizer = open_tokenizer(directory, checkpoint.config.max_tokens)
    check_token_ids(checkpoint, tokenizer.encode(SAMPLE_TEXT))
    model = EmbeddingModel(checkpoint.name, checkpoint.digest, SentenceEncoder(checkpoint, device), tokenizer)
    _try_out(directory, model, 0)
    return model


def _open_siglip_model(directory: Path, device: torch.device) -> EmbeddingModel:
    checkpoint = open_siglip(directory)
    config = checkpoint.config
    preprocessing = read_preprocessing(directory / "preprocessor_config.json", config.image_size, crops=False)
    tokenizer = open_tokenizer(directory, config.max_position_embeddings)
    pad_token = pad_token_of(directory, tokenizer)
    if max(pad_token, *tokenizer.encode(SAMPLE_TEXT)) >= config.vocab_size:
        raise BadCheckpoint(f"{directory}: its tokenizer does not fit its config.json")
    return _dual_of(directory, checkpoint, SiglipEncoder(checkpoint, pad_token, device), tokenizer, preprocessing)


def _open_clip_model(directory: Path, device: torch.device) -> EmbeddingModel:
    checkpoint = open_encoder(directory)
    path = directory / "preprocessor_config.json"
    return _dual_model(directory, checkpoint, read_preprocessing(path, checkpoint.config.image_size), device)


def _open_open_clip_model(directory: Path, device: torch.device) -> EmbeddingModel:
    return _dual_model(directory, *open_open_clip(directory), device)


def _dual_model(
    directory: Path,
    checkpoint: EncoderCheckpoint[EncoderConfig],
    preprocessing: ImagePreprocessing,
    device: torch.device,
) -> EmbeddingModel:
    config = checkpoint.config
    tokenizer = open_tokenizer(directory, config.max_position_embeddings)
    _check_tokenizer(directory, tokenizer, config)
    return _dual_of(directory, checkpoint, DualEncoder(checkpoint, device), tokenizer, preprocessing)


def _dual_of(
    directory: Path,
    checkpoint: EncoderCheckpoint[EncoderConfig],
    encoder: DualEncoder | SiglipEncoder,
    tokenizer: TextTokenizer,
    preprocessing: ImagePreprocessing,
) -> EmbeddingModel:
    images = ImageTower(encoder, preprocessing)
    model = EmbeddingModel(checkpoint.name, checkpoint.digest, encoder, tokenizer, images)
    _try_out(directory, model, checkpoint.config.image_size)
    return model


_OPENERS: Mapping[Any, Callable[[Path, torch.device], EmbeddingModel]] = {
    "clip": _open_clip_model,
    "siglip": _open_siglip_model,
    "bert": _open_sentence_model,
}


def _check_tokenizer(directory: Path, tokenizer: TextTokenizer, config: EncoderConfig) -> None:
    ids = tokenizer.encode(SAMPLE_TEXT)
    ends_well = ids[-1] == (max(ids) if config.eos_token_id == LEGACY_END_TOKEN else config.eos_token_id)
    if not ends_well or max(ids) >= config.vocab_size:
        raise BadCheckpoint(f"{directory}: its tokenizer does not fit its config.json")


def _try_out(directory: Path, model: EmbeddingModel, image_size: int) -> None:
    """Embed a first text and image: they warm the kernels, and show whether the weights are sound."""
    try:
        with torch.inference_mode():
            model.embed_texts(["an image"])
            if model.images is not None:
                model.embed_images([np.zeros((3, image_size, image_size), np.float32)])
    except (Internal, RuntimeError, IndexError) as error:
        raise BadCheckpoint(f"{directory}: its weights give no usable embedding ({error})") from None


def _as_bytes(vectors: Tensor) -> list[bytes]:
    """Raise Internal for a vector that is not of unit length: it would poison an index."""
    vectors = vectors.cpu()
    lengths: Any = vectors.norm(dim=-1)
    if not bool(((lengths - 1).abs() < LENGTH_TOLERANCE).all()):
        raise Internal("EMBEDDING_NOT_FINITE", "the encoder gave a vector that is not of unit length")
    return [row.tobytes() for row in vectors.numpy().astype("<f4", copy=False)]
