"""Settings of policies from the file of an emulated fleet."""

from lab.emulation.fleet_file import EmulatedFleet
from pentimento.policies.plan.settings import DeferralCurve, ModelQuality, ServingSettings


def fleet_settings(fleet: EmulatedFleet) -> ServingSettings:
    """Return settings with the models, f(t) and discriminator's time of the fleet's file; all else by default. Without
    a cascade the models other than the default one refine hits, in the file's order."""
    heavy = fleet.default_model
    others = tuple(model.name for model in fleet.models if model.name != heavy)
    thresholds, shares = zip(*fleet.deferral, strict=True)
    return ServingSettings(
        heavy=heavy,
        light=next((model for model in fleet.cascade if model != heavy), ""),
        small=() if fleet.cascade else others,
        deferral=DeferralCurve(thresholds, shares),
        discriminator_s=fleet.discriminator.score.mean_s if fleet.discriminator is not None else 0.0,
        step_count=fleet.model(heavy).steps,
        qualities=tuple(
            ModelQuality(model.name, model.quality, model.quality_spread, model.reuse_quality)
            for model in fleet.models
            if model.quality is not None
        ),
    )
