"""Published thresholds of reuse, each with its paper and the encoder that it was measured with.

Similarities of two encoders cannot be compared, so a prior serves its own encoder only. An encoder is named by the
digests of its files, as its publisher distributes them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from pentimento.policies.cache_selection import NIRVANA_LATENT_THRESHOLDS, Threshold, Thresholds
from pentimento.profiles.document import ReuseKind

# K of 50 steps that the paper tried from images.
MODM_IMAGE_STEPS = (5, 10, 15, 20, 25, 30)


@dataclass(frozen=True)
class PublishedEncoder:
    """Name an encoder. `files`: the SHA-256 of each file that an embedder reads."""

    name: str
    files: Mapping[str, str] = field(repr=False)

    @property
    def digest(self) -> str:
        """Return the digest that embedders report for these files."""
        lines = "".join(f"{name}\0{value}\n" for name, value in sorted(self.files.items()))
        return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


@dataclass(frozen=True)
class PublishedReuse:
    """Hold the strictest published threshold of a paper for a kind of start, as a table with it in every row: a start
    that skips fewer steps is nearer to the image from noise. `alpha`: the share of the from-scratch quality that the
    paper asked for."""

    paper: str
    kind: ReuseKind
    encoder: PublishedEncoder
    thresholds: Thresholds
    alpha: float

    @property
    def name(self) -> str:
        """Return paper and encoder, for provenance."""
        return f"prior of {self.paper} for {self.encoder.name}"


CLIP_VIT_L_14 = PublishedEncoder(
    "openai/clip-vit-large-patch14",
    {
        "config.json": "8a09b467700c58138c29d53c605b34ebc69beaadd13274a8a2af8ad2c2f4032a",
        "merges.txt": "9fd691f7c8039210e0fced15865466c65820d09b63988b0174bfe25de299051a",
        "model.safetensors": "a2bf730a0c7debf160f7a6b50b3aaf3703e7e88ac73de7a314903141db026dcb",
        "preprocessor_config.json": "910e70b3956ac9879ebc90b22fb3bc8a75b6a0677814500101a4c072bd7857bd",
        "special_tokens_map.json": "f8c0d6c39aee3f8431078ef6646567b0aba7f2246e9c54b8b99d55c22b707cbf",
        "tokenizer.json": "a83e0809aa4c3af7208b2df632a7a69668c6d48775b3c3fe4e1b1199d1f8b8f4",
        "tokenizer_config.json": "deef455e52fa5e8151e339add0582e4235f066009601360999d3a9cda83b1129",
        "vocab.json": "3f0c4f7d2086b61b38487075278ea9ed04edb53a03cbb045b86c27190fa8fb69",
    },
)

# Text-to-text similarity 0.95 allows K <= 25 of 50 (NIRVANA, Figure 10, as a re-implementation states it).
NIRVANA_LATENTS = PublishedReuse(
    "NIRVANA",
    ReuseKind.LATENTS,
    CLIP_VIT_L_14,
    tuple(
        Threshold(max(row.min_similarity for row in NIRVANA_LATENT_THRESHOLDS), row.saved_share)
        for row in NIRVANA_LATENT_THRESHOLDS
    ),
    alpha=0.9,
)
# Text-to-image similarity 0.30 allows K = 30 of 50 (MoDM, Figure 5b).
MODM_IMAGES = PublishedReuse(
    "MoDM",
    ReuseKind.IMAGES,
    CLIP_VIT_L_14,
    tuple(Threshold(0.30, step / 50) for step in MODM_IMAGE_STEPS),
    alpha=0.95,
)
PRIORS = (NIRVANA_LATENTS, MODM_IMAGES)


def prior_of(kind: ReuseKind, encoder_digest: str | None) -> PublishedReuse | None:
    """Return the prior that was measured with an encoder; None for any other encoder."""
    return next((one for one in PRIORS if one.kind is kind and one.encoder.digest == encoder_digest), None)


def rejected_priors(kind: ReuseKind) -> str:
    """Return a sentence that names the priors which do not hold for an encoder."""
    return "; ".join(f"the {prior.name} does not hold for this encoder" for prior in PRIORS if prior.kind is kind)
