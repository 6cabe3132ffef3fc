"""What reuse does to quality while it serves: hits painted again from scratch, and the thresholds that follow them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PaintedAgain:
    """A picture that started from the cache beside the one of the same request from noise.

    `request_id` is the hit's, which is counted once. `skipped_steps` of `step_count` were saved by a latent, or by an
    image where `from_image`. `reference_model_digest` names the model that painted from noise. `similarity` (cosine) is
    that of donor and prompt; `quality` and `scratch_quality` are CLIPScores (cosine of picture and prompt) by the
    encoder.
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
    """One hit that was painted again; newer ones have larger numbers."""

    number: int
    similarity: float
    quality: float
    scratch_quality: float


@dataclass(frozen=True)
class ThresholdPosition:
    """The similarity from which a threshold is in force, and the newest sample's number at its last move (0: none)."""

    similarity: float
    moved_at_number: int = 0
