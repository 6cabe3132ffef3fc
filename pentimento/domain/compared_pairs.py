"""A light and a heavy image of the same request: an example for a cascade's discriminator."""

from dataclasses import dataclass, field

from pentimento.domain.embedding import Embedding


@dataclass(frozen=True)
class ComparedPair:
    """Hold both images of a request (PNG, JPEG or WebP) and their scores.

    `cascade` is `light>heavy`, with the digests of both models. `prompt` is the prompt's embedding; the scores are the
    cosines of image and prompt by its encoder. `confidence` (0..1) is that of the discriminator in service, `deferred`
    its verdict, and `sampled_share` the share of such images that were compared: pairs are weighted by its inverse.
    """

    cascade: str
    light_digest: str
    heavy_digest: str
    prompt: Embedding
    light_score: float
    heavy_score: float
    confidence: float
    deferred: bool
    sampled_share: float
    light: bytes = field(repr=False)
    heavy: bytes = field(repr=False)
