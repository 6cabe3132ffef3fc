"""Configure a policy: models, SLO, qualities, the deferral curve of a cascade."""

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import Replica
from pentimento.domain.models import Handover
from pentimento.domain.reasons import Reason

THRESHOLD_COUNT = 201


@dataclass(frozen=True)
class DeferralCurve:
    """Hold f(t) of a cascade (DiffServe, 3.3): the share of light images with a confidence of t or less.

    The curve is linear between the points; by default from 0 at t = 0 to 1 at t = 1.
    """

    thresholds: tuple[float, ...] = (0.0, 1.0)
    shares: tuple[float, ...] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if len(self.thresholds) != len(self.shares) or len(self.shares) < 2:
            raise ValueError("a deferral curve needs two points or more, a share for each threshold")
        for values in (self.thresholds, self.shares):
            if not all(0 <= value <= 1 for value in values) or list(values) != sorted(values):
                raise ValueError(f"thresholds and shares must ascend within 0 and 1, got {values}")

    def share(self, threshold: float) -> float:
        """Return f(t), 0..1."""
        return _between(threshold, self.thresholds, self.shares)

    def confidence(self, quantile: float) -> float:
        """Return the confidence that a share `quantile` (0..1) of light images does not exceed, for a simulator's
        draws."""
        return _between(quantile, self.shares, self.thresholds)


def _between(x: float, xs: tuple[float, ...], ys: tuple[float, ...]) -> float:
    """Interpolate linearly; the last of equal `xs` counts."""
    index = bisect.bisect_right(xs, x)
    if index == 0:
        return ys[0]
    if index == len(xs):
        return ys[-1]
    low, high = xs[index - 1], xs[index]
    return ys[index - 1] + (ys[index] - ys[index - 1]) * (x - low) / (high - low)


@dataclass(frozen=True)
class ModelQuality:
    """Hold the mean quality of a model's images, 0..1. `spread`: the most confident images exceed the mean by half of
    it, the least confident fall short by half. A start from the cache keeps the share `reuse` of the quality."""

    model: str
    quality: float
    spread: float = 0.0
    reuse: float = 1.0


class MixtureMode(Enum):
    """Name the objective of MoDM's monitor: quality (section 5.3.1 of the paper) or throughput (section 5.3.2)."""

    QUALITY = "quality"
    THROUGHPUT = "throughput"


def measured_deferral(cascade: str, replicas: Iterable[Replica]) -> DeferralCurve | None:
    """Return f(t) of `light>heavy` by a discriminator of the fleet; None if none has measured it."""
    found = (one for replica in replicas for one in replica.deferrals if one.discriminator == cascade)
    return next((DeferralCurve(one.thresholds, one.shares) for one in found), None)


def check_informative(cascades: Iterable[str], replicas: Iterable[Replica]) -> None:
    """Raise FailedPrecondition DISCRIMINATOR_UNINFORMATIVE if the fleet's discriminator of a cascade `light>heavy` says
    that it carries no information."""
    wanted = set(cascades)
    for one in (one for replica in replicas for one in replica.deferrals):
        if one.discriminator in wanted and one.uninformative:
            message = f"the discriminator of {one.discriminator} carries no information: {one.uninformative}"
            raise FailedPrecondition(Reason.DISCRIMINATOR_UNINFORMATIVE, message)


@dataclass(frozen=True)
class ServingSettings:
    """Hold the settings of all policies; each reads its own. Times in seconds, rates per second.

    - Models: `light` and `heavy` of a cascade, `handover` the registration of the pair, `deferral` its f(t); `small`
      refine hits, best first (empty: the light one). `step_count` is T.
    - `slo_s`: L of DiffServe's allocation problem. `discriminator_s`: of one scoring; 0: as discriminators measured.
    - Demand: `expected_per_s` is the first value of dynamic policies (0: the first demand), `peak_per_s` the demand
      for static policies. `overprovision` is DiffServe's lambda, `demand_weight` the weight of the newest second in the
      average (DiffServe's artefact: centre of mass 2.1, so 1 / 3.1).
    - MoDM: `modm_mode`; `hysteresis`, the share of its throughput that a smaller model must spare before the better one
      returns; `dwell_s` between two changes of the devices' models; `damping_period_s`, the period of the paper's PID
      controller, which moves the number of large devices by one step; 0 for undamped.
    - `run_price`: the quality of one request, 0..1, that a whole run of the heavy model must add in the joint policy.
    - `qualities` of models for the joint policy; others count as 1 (heavy) and 0.9 (all others).
    """

    heavy: str
    light: str = ""
    small: tuple[str, ...] = ()
    slo_s: float = math.inf
    deferral: DeferralCurve = DeferralCurve()
    handover: Handover | None = None
    discriminator_s: float = 0.0
    expected_per_s: float = 0.0
    peak_per_s: float = 0.0
    fixed_threshold: float = 0.5
    overprovision: float = 1.05
    demand_weight: float = 1 / 3.1
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    step_count: int = 50
    modm_mode: MixtureMode = MixtureMode.QUALITY
    hysteresis: float = 0.1
    dwell_s: float = 60.0
    damping_period_s: float = 180.0
    run_price: float = 0.002
    qualities: tuple[ModelQuality, ...] = ()

    def measured_by(self, replicas: Iterable[Replica]) -> "ServingSettings":
        """Return the settings with f(t) of the fleet's discriminators, if neither the operator nor a registration gives
        one."""
        if self.handover is not None or self.deferral != DeferralCurve():
            return self
        return replace(self, deferral=measured_deferral(self.discriminator, replicas) or self.deferral)

    def handing_over(self, handover: Handover) -> "ServingSettings":
        """Return the settings with a registered hand-over, and its f(t)."""
        return replace(self, handover=handover, deferral=DeferralCurve(handover.thresholds, handover.shares))

    @property
    def discriminator(self) -> str:
        """Return the name of the cascade for discriminators: that of its registration, or of its models."""
        return self.handover.discriminator if self.handover is not None else f"{self.light}>{self.heavy}"

    @property
    def reuse_share(self) -> float:
        """Return the share (0..1) of the heavy model's steps that a start from the light image saves."""
        return self.handover.reuse_share if self.handover is not None else 0.0

    def quality_of(self, model: str) -> ModelQuality:
        """Return the quality of a model."""
        assumed = ModelQuality(model, 1.0 if model == self.heavy else 0.9)
        return next((known for known in self.qualities if known.model == model), assumed)

    @property
    def small_models(self) -> tuple[str, ...]:
        """Return the models that refine hits, best first: `small`, or the light one."""
        return self.small or ((self.light,) if self.light else ())
