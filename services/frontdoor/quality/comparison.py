"""Score two images of a prompt with CLIPScore, the cosine of image and prompt, as in selector profiles."""

import math
import struct
from dataclasses import dataclass

from pentimento.clients.embedders import Embedders
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition

EMBED_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Scores:
    """Hold the scores of the served image and of the image from noise, by the encoder that embedded the prompt."""

    prompt: Embedding
    quality: float
    scratch_quality: float

    @property
    def encoder_digest(self) -> str:
        return self.prompt.encoder_digest


async def score(embedder: Embedders, tenant: str, prompt: str, served: bytes, scratch: bytes) -> Scores:
    """Return the scores of two encoded images. Raises FailedPrecondition if the embedder uses different encoders for
    images and texts, and the embedder's errors."""
    (text,) = await embedder.embed_text([prompt], EMBED_TIMEOUT_S, memo_partition=tenant)
    pictures = await embedder.embed_image([served, scratch], EMBED_TIMEOUT_S, memo_partition=tenant)
    if len(pictures) != 2 or {picture.encoder_digest for picture in pictures} != {text.encoder_digest}:
        raise FailedPrecondition("ENCODERS_DIFFER", "images and texts are not of one encoder")
    return Scores(text, *(cosine(text, picture) for picture in pictures))


def cosine(one: Embedding, other: Embedding) -> float:
    """Return the cosine of two unit vectors, -1..1. Raises FailedPrecondition for different lengths."""
    if one.dimension_count != other.dimension_count:
        raise FailedPrecondition("ENCODERS_DIFFER", "the vectors are not of one length")
    pairs = zip(_values(one), _values(other), strict=True)
    return max(-1.0, min(1.0, math.fsum(left * right for left, right in pairs)))


def _values(embedding: Embedding) -> tuple[float, ...]:
    return struct.unpack(f"<{embedding.dimension_count}f", embedding.values)
