"""What a policy must be told before it can plan, and what the file of an emulated fleet tells it."""

from collections.abc import Mapping

from pentimento.devices.emulation import EmulatedFleet
from pentimento.domain.errors import InvalidArgument
from pentimento.policies.serving.settings import DeferralCurve, ModelQuality, ServingSettings

_CASCADE = ("heavy", "light", "slo_s")
# Fields of ServingSettings without which a policy is none.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "resident": (),
    "vanilla": ("heavy",),
    "clipper-light": ("light", "slo_s"),
    "clipper-heavy": ("heavy", "slo_s"),
    "proteus": _CASCADE,
    "static-cascade": (*_CASCADE, "peak_per_s"),
    "static-threshold": _CASCADE,
    "aimd": _CASCADE,
    "no-queueing-model": _CASCADE,
    "diffserve": _CASCADE,
    "diffserve-relaxed": _CASCADE,
    "diffserve-milp": _CASCADE,
    "nirvana-only": ("heavy",),
    "retrieval-only": ("heavy",),
    "modm": ("heavy", "small_models"),
    "modm-only": ("heavy", "small_models"),
    "resident-mixture": ("heavy", "small_models"),
    "joint": ("heavy", "small_models", "slo_s"),
}


def check_needs(name: str, settings: ServingSettings) -> None:
    """Raise InvalidArgument that names the field which the policy of that name lacks."""
    for field in NEEDS[name]:
        value = getattr(settings, field)
        if field in ("slo_s", "peak_per_s"):
            if not 0.0 < value < float("inf"):
                raise InvalidArgument.of(field, f"must be above 0 and finite for {name}, got {value}")
        elif not value:
            raise InvalidArgument.of(field, f"must name a model for {name}")
    if "light" in NEEDS[name] and settings.light == settings.heavy:
        raise InvalidArgument.of("light", f"must be another model than heavy for {name}, got {settings.light}")


def fleet_settings(fleet: EmulatedFleet) -> ServingSettings:
    """Return settings with the models, f(t) and discriminator's time of the fleet's file; all else by default."""
    heavy = fleet.default_model
    thresholds, shares = zip(*fleet.deferral, strict=True)
    return ServingSettings(
        heavy=heavy,
        light=next((model for model in fleet.cascade if model != heavy), ""),
        deferral=DeferralCurve(thresholds, shares),
        discriminator_s=fleet.discriminator.score.mean_s if fleet.discriminator is not None else 0.0,
        step_count=fleet.model(heavy).steps,
        qualities=tuple(
            ModelQuality(model.name, model.quality, model.quality_spread, model.reuse_quality)
            for model in fleet.models
            if model.quality is not None
        ),
    )
