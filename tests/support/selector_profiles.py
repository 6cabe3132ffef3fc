"""A selector profile, as tests of several parts need one: a heavy model's own latents."""

from pentimento.policies.selector_profiles import ProfiledStep, ReuseKind, SelectorProfile
from pentimento.policies.selector_profiling import ThresholdRule

ROWS = (ProfiledStep(5, 80, 0.7, 0.6, 0.5), ProfiledStep(10, 80, 0.9, 0.8, 0.7), ProfiledStep(15, 80, None, None, 0.9))
LATENT_PROFILE = SelectorProfile(
    kind=ReuseKind.LATENTS,
    model="heavy",
    model_digest="sha256:heavy",
    reference_model="heavy",
    reference_model_digest="sha256:heavy",
    encoder="clip",
    encoder_digest="sha256:clip",
    quality="clip_score",
    alpha=0.9,
    rule=ThresholdRule.LOWER_BOUND,
    step_count=50,
    model_step_count=50,
    pair_count=80,
    steps=ROWS,
)
