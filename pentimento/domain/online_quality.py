"""Quality of reuse while it serves: hits generated again from scratch, and the thresholds that follow them."""

from dataclasses import dataclass, field

from pentimento.domain.embedding import Embedding


@dataclass(frozen=True)
class ComparedHit:
    """An image that started from the cache, compared with the image of the same request from noise.

    `request_id` is the hit's, which is counted once. A latent, or an image where `from_image`, saved `skipped_steps` of
    `step_count`. `reference_model_digest` names the model that started from noise. `similarity` (cosine) is between
    donor and prompt by `encoder_digest`; `quality` and `scratch_quality` are CLIPScores (cosine of image and prompt) by
    the encoder of images.
    """

    request_id: str
    model_digest: str
    reference_model_digest: str
    encoder_digest: str
    from_image: bool
    skipped_steps: int
    step_count: int
    similarity: float
    quality: float
    scratch_quality: float


@dataclass(frozen=True)
class WatchedThreshold:
    """A row of a table of reuse, by what does not change when its similarity does: `saved_ppm` millionths of the steps
    are skipped."""

    encoder_digest: str
    model_digest: str
    reference_model_digest: str
    from_image: bool
    saved_ppm: int


@dataclass(frozen=True)
class QualitySample:
    """One hit that was generated again; newer ones have larger numbers."""

    number: int
    similarity: float
    quality: float
    scratch_quality: float


@dataclass(frozen=True)
class ThresholdPosition:
    """The lowest similarity that hits allow (-1: they never said anything), and the newest sample's number when that
    moved last."""

    similarity: float = -1.0
    moved_at_number: int = 0


@dataclass(frozen=True)
class AchievedQuality:
    """Quality that hits kept. `kept_share` is the share of hits that kept the requested alpha; `alpha` is the share
    that 95 % of the hits kept at least. Lower and upper bounds are one-sided, at 95 % each."""

    sample_count: int
    kept_share: float
    kept_share_low: float
    kept_share_high: float
    alpha: float
    alpha_low: float
    alpha_high: float


@dataclass(frozen=True)
class ReuseQuality:
    """A row of a model's table of reuse, and what hits by it were seen to keep: None before the first.

    `profiled_similarity` is the table's own, `similarity` the one in force; `source` says where the table is from. An
    empty `reference_model_digest` stands for the model itself. `earned`: trials open and widen the row; it allows
    nothing while its similarity is 1. `trial_count`: trials since it last moved.
    """

    from_image: bool
    saved_share: float
    profiled_similarity: float
    similarity: float
    asked_alpha: float
    source: str
    reference_model_digest: str = ""
    achieved: AchievedQuality | None = None
    earned: bool = False
    trial_count: int = 0


@dataclass(frozen=True)
class EarnedCells:
    """Count the rows of earned tables, the open ones among them, and the trials since a row last moved."""

    row_count: int = 0
    open_count: int = 0
    trial_count: int = 0


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
