"""Which steps of a request may be left out, as the dataplane is told: by the profile of the model that paints it."""

from dataclasses import dataclass, field

from pentimento.domain.generation import FromNoise, Start
from pentimento.domain.image_request import ResolvedRequest
from pentimento.policies.thinning import WHOLE, ThinningMode, ThinningOffer
from pentimento.policies.thinning_profiles import ThinningProfiles


@dataclass(frozen=True)
class ThinningOffers:
    """The deployment's mode and profiles. Off, or without a profile of the model, nothing is offered."""

    mode: ThinningMode = ThinningMode.OFF
    profiles: ThinningProfiles = field(default_factory=ThinningProfiles)

    def offer(self, resolved: ResolvedRequest, model_digest: str, start: Start | None = None) -> ThinningOffer:
        """Return what may be left out of a request that starts there, from noise where that is not known yet."""
        if self.refusal(resolved, model_digest, start):
            return WHOLE
        options = self.profiles.options(resolved.spec, model_digest)
        return ThinningOffer(resolved.spec.num_inference_steps, 0, options) if options else WHOLE

    def refusal(self, resolved: ResolvedRequest, model_digest: str, start: Start | None = None) -> str:
        """Return why nothing of the request is left out, whatever the load; "" where something may be."""
        if self.mode is ThinningMode.OFF:
            return "thinning is off"
        if resolved.replay is not None:
            return "a replay takes the steps that were taken"
        if resolved.quality is not None and resolved.quality > self.profiles.alpha:
            return f"{resolved.quality:g} of the quality is asked for, {self.profiles.alpha:g} is promised"
        return self.profiles.refusal(resolved.spec, model_digest, start or FromNoise(), binding=not resolved.may_thin)
