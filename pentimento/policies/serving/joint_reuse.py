"""How much of the cache's tables a plan has used: alpha and bias of the selector as choices of the joint problem.

Three levels, each a step from the next: *nothing* (alpha 1: no table promises as much, so that all start from noise),
the tables' *own* word, and *more* (bias 1: every similarity allows the next row's K, NIRVANA's section 5.3.1). A level
changes how requests start, which the joint problem weighs as it weighs everything else.
"""

from dataclasses import replace

from pentimento.domain.fleet import CachePlan
from pentimento.policies.serving.joint_demand import JointDemand
from pentimento.policies.serving.settings import ServingSettings

NOTHING, OWN, MORE = CachePlan(alpha=1.0), CachePlan(), CachePlan(bias=1)
LEVELS = (NOTHING, OWN, MORE)

# Rows of a table are a tenth of the steps apart, in both papers. How many more steps hits leave out is observed
# thereafter.
_ROW = 0.1
_MOST_SAVED = 0.9


def level_of(cache: CachePlan) -> CachePlan:
    """Return the level of a plan in force; the tables' own where it says another alpha or bias than these levels do."""
    return next((one for one in LEVELS if (one.alpha, one.bias) == (cache.alpha, cache.bias)), OWN)


def steps_away(level: CachePlan, may_less: bool = True) -> tuple[CachePlan, ...]:
    """Return the levels that a plan may change to from this one; those of less reuse where it may be less."""
    place = LEVELS.index(level)
    return LEVELS[max(place - may_less, 0) : place] + LEVELS[place + 1 : place + 2]


def known_under(known: JointDemand, before: CachePlan, level: CachePlan) -> JointDemand:
    """Return what is to be remembered of starts once `level` follows `before`: hits leave out a row more, or less. What
    is known of hits stays known while there are none."""
    rows = level.bias - before.bias
    if not rows:
        return known
    latents, images = (_moved(saved, rows) for saved in (known.latent_saved, known.image_saved))
    return replace(known, latent_saved=latents, image_saved=images)


def as_reused(known: JointDemand, level: CachePlan) -> JointDemand:
    """Return the demand as requests start under a level."""
    return replace(known, latent_share=0.0, image_share=0.0) if level == NOTHING else known


def quality_kept(bias: int, loss: float) -> float:
    """Return the share (0..1) of a hit's quality that stays where its K is `bias` rows beyond what its table promises;
    a row costs `loss` (0..1). Rows below the promise win nothing that anybody measured."""
    return max(0.0, 1.0 - loss * max(bias, 0))


def settings_under(settings: ServingSettings, level: CachePlan) -> ServingSettings:
    """Return the settings with the quality that hits keep under a level."""
    kept = quality_kept(level.bias, settings.bias_loss)
    if kept == 1.0:
        return settings
    models = dict.fromkeys((settings.heavy, settings.light, *settings.small_models))
    known = (settings.quality_of(model) for model in models if model)
    return replace(settings, qualities=tuple(replace(one, reuse=one.reuse * kept) for one in known))


def _moved(saved: float, rows: int) -> float:
    return min(max(saved + rows * _ROW, _ROW), _MOST_SAVED)
