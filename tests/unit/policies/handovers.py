"""A hand-over profile that was measured of a pair."""

from pentimento.policies.handover_profiles import HandoverProfile, handover_row
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.policies.thinning_profiling import ThinnedSample

GOOD, BAD = ThinnedSample(0.96, 1.0), ThinnedSample(0.9, 1.0)
ROWS = (
    handover_row(0.5, 25, [GOOD] * 100, 0.95),
    handover_row(0.1, 45, [GOOD] * 100, 0.95),
    handover_row(0.2, 40, [*([GOOD] * 99), BAD], 0.95),
    handover_row(0.3, 35, [*([GOOD] * 60), *([BAD] * 40)], 0.95),
)
PROFILE = HandoverProfile(
    *("light", "sha256:l", "heavy", "sha256:h"),
    step_count=50,
    guidance_scale=5.0,
    encoder="clip",
    encoder_digest="sha256:c",
    quality="clip_score",
    alpha=0.95,
    rule=ThresholdRule.LOWER_BOUND,
    light_share=0.84,
    rows=ROWS,
)
