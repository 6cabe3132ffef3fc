"""Learn the quality of light images and of hits from comparisons with the heavy model's image of the same request.

Comparisons come from deferrals (both models answered the request) and from shadows (the heavy model answered it again
while idle). The quality of a light image is a straight line over the quantile of its confidence:

    share kept = mean + spread * (quantile - 1/2)

The profile is the prior and counts as `PRIOR_COUNT` images, evenly spread over the quantiles. Only confidence decides
which images are compared, so a line over low confidences holds for high ones. Plans use the lower confidence bound of
the spread: a cascade gains nothing if its discriminator cannot distinguish quality.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

from pentimento.domain.demand import KeptQuality
from pentimento.policies.plan.demand import demand_of
from pentimento.policies.plan.inputs import PlanInput
from pentimento.policies.plan.settings import DeferralCurve, ModelQuality, ServingSettings

# Images that a profile counts as, and the standard deviation of the share that a single image keeps (benchmark router:
# 0.17 to 0.19) before the first comparison.
PRIOR_COUNT = 50.0
PRIOR_DEVIATION = 0.2
# Standard errors between the spread and its lower bound.
BOUND_ERRORS = 1.0
# Seconds after which evidence counts half, so that a discriminator is tried again.
HALF_LIFE_S = 3_600.0
# Variance of the quantile, which is uniform.
_UNIFORM_VARIANCE = 1.0 / 12.0
# Hits have no confidence: all have the quantile 1/2.
_EVEN = DeferralCurve()


@dataclass(frozen=True)
class LearntLine:
    """Hold sums over compared images: their number, `x` the quantile of the confidence less 1/2, `y` the share kept."""

    n: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0

    def seen(self, compared: Sequence[KeptQuality], curve: DeferralCurve) -> "LearntLine":
        """Return the sums with new comparisons, which are grouped by equal parts of confidence."""
        line, size = self, max(len(compared), 1)
        for part, one in enumerate(compared):
            x = (curve.share(part / size) + curve.share((part + 1) / size) - 1.0) / 2.0
            line = LearntLine(
                line.n + one.count,
                line.x + x * one.count,
                line.y + one.kept,
                line.xx + x * x * one.count,
                line.xy + x * one.kept,
                line.yy + one.squares,
            )
        return line

    def faded(self, share: float) -> "LearntLine":
        """Return the sums, reduced to that share (0..1) of the images."""
        return LearntLine(*(share * value for value in astuple(self)))

    def estimate(self, mean: float, spread: float) -> tuple[float, float]:
        """Return the mean share kept and the lower bound of the spread, from a profile's mean and spread."""
        prior_xx = PRIOR_COUNT * _UNIFORM_VARIANCE
        n, xx = PRIOR_COUNT + self.n, prior_xx + self.xx
        y, xy = PRIOR_COUNT * mean + self.y, prior_xx * spread + self.xy
        determinant = n * xx - self.x * self.x
        level, slope = (y * xx - xy * self.x) / determinant, (n * xy - self.x * y) / determinant
        error = math.sqrt(self._variance(level, slope) * n / determinant)
        return level, max(0.0, slope - BOUND_ERRORS * error)

    def _variance(self, level: float, slope: float) -> float:
        """Return the variance of a single image around the line."""
        missed = self.yy - 2.0 * (level * self.y + slope * self.xy)
        missed += level * level * self.n + 2.0 * level * slope * self.x + slope * slope * self.xx
        return (PRIOR_COUNT * PRIOR_DEVIATION**2 + max(missed, 0.0)) / (PRIOR_COUNT + self.n)


@dataclass(frozen=True)
class LearntQuality:
    """Hold sums at `at_s`: of light images, and of the hits of each of `models`, which have no confidence."""

    models: tuple[str, ...]
    at_s: float = 0.0
    light: LearntLine = LearntLine()
    hits: tuple[LearntLine, ...] = ()

    @classmethod
    def empty(cls, settings: ServingSettings) -> "LearntQuality":
        """Return empty sums for the models of the settings."""
        models = tuple(dict.fromkeys(one for one in (settings.heavy, settings.light, *settings.small_models) if one))
        return cls(models, hits=(LearntLine(),) * len(models))

    def seen(self, context: PlanInput, settings: ServingSettings, curve: DeferralCurve) -> "LearntQuality":
        """Return the sums after this planning round. `curve`: f(t) as observed."""
        kept = 0.5 ** ((context.now_s - self.at_s) / HALF_LIFE_S)
        compared = demand_of(context, settings.light).compared if settings.light else ()
        hits = tuple(
            line.faded(kept).seen((demand_of(context, model).hits,), _EVEN)
            for model, line in zip(self.models, self.hits, strict=True)
        )
        return replace(self, at_s=context.now_s, light=self.light.faded(kept).seen(compared, curve), hits=hits)

    def applied(self, settings: ServingSettings) -> ServingSettings:
        """Return the settings with the estimated qualities."""
        best = settings.quality_of(settings.heavy).quality
        if best <= 0.0:
            return settings
        return replace(settings, qualities=tuple(self._learnt(settings, model, best) for model in self.models))

    def notes(self, settings: ServingSettings) -> list[str]:
        """Return the estimates in words; none before the first comparison."""
        learnt = self.applied(settings)
        found = []
        if self.light.n >= 1.0:
            light = learnt.quality_of(settings.light)
            found.append(
                f"light images of {settings.light} are worth {light.quality:.2f}, and {light.spread:.2f} more from the"
                f" least to the most confident, by {_about(self.light.n)} comparisons"
            )
        for model, line in zip(self.models, self.hits, strict=True):
            known = learnt.quality_of(model)
            if line.n >= 1.0:
                worth = known.quality * known.reuse
                found.append(f"hits of {model} are worth {worth:.2f}, by {_about(line.n)} comparisons")
        return found

    def _learnt(self, settings: ServingSettings, model: str, best: float) -> ModelQuality:
        known = settings.quality_of(model)
        hit, _ = self.hits[self.models.index(model)].estimate(known.quality * known.reuse / best, 0.0)
        if model == settings.light:
            mean, spread = self.light.estimate(known.quality / best, known.spread / best)
            known = replace(known, quality=min(max(mean * best, 0.0), 1.0), spread=min(spread * best, 1.0))
        return replace(known, reuse=max(hit, 0.0) * best / known.quality) if known.quality > 0.0 else known


def _about(count: float) -> str:
    """Return the count in words, rounded down to a power of two: plans must not change with every comparison."""
    return f"{2 ** int(math.log2(count))} or more"
