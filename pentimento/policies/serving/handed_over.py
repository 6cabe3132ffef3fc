"""What a plan says of a stage whose refused pictures go on to the next one."""

from pentimento.domain.fleet import StagePlan, StartThreshold
from pentimento.domain.models import Handover


def scored_stage(pool: str, thresholds: tuple[StartThreshold, ...], handover: Handover | None) -> StagePlan:
    """Return the stage with the discriminator and the reuse that are registered for it; where nothing is, whoever knows
    the cascade of the two models scores it, and the next stage starts from noise."""
    if handover is None:
        return StagePlan(pool, thresholds)
    return StagePlan(
        pool,
        thresholds,
        handover.discriminator,
        reuse_share=handover.reuse_share,
        discriminator_digest=handover.discriminator_digest,
    )
