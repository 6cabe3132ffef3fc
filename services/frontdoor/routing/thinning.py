"""Which steps of a request may be left out, as the dataplane is told: by the profile of the model that paints it."""

from dataclasses import dataclass, field

from pentimento.domain.generation import FromNoise, Start
from pentimento.domain.image_request import ResolvedRequest
from pentimento.policies.thinning import WHOLE, ThinningMode, ThinningOffer, ThinningRefusal, WholeReason
from pentimento.policies.thinning_profiles import ThinningProfiles


@dataclass(frozen=True)
class ThinningOffers:
    """The deployment's mode and profiles. Off, or without a profile of the model, nothing is offered."""

    mode: ThinningMode = ThinningMode.OFF
    profiles: ThinningProfiles = field(default_factory=ThinningProfiles)

    def offer(
        self, resolved: ResolvedRequest, model_digest: str, start: Start | None = None, pipelined_from_step: int = 0
    ) -> ThinningOffer:
        """Return what may be left out of a request that starts there, from noise where that is not known yet."""
        if self.refusal(resolved, model_digest, start, pipelined_from_step) is not None:
            return WHOLE
        return ThinningOffer(resolved.spec.num_inference_steps, 0, self.profiles.options(resolved.spec, model_digest))

    def refusal(
        self, resolved: ResolvedRequest, model_digest: str, start: Start | None = None, pipelined_from_step: int = 0
    ) -> ThinningRefusal | None:
        """Return why nothing of the request is left out, whatever the load; None where something may be."""
        asked = self._asked(resolved)
        if asked is not None:
            return asked
        if pipelined_from_step:
            why = "residuals that are a step old are those of a step that was taken"
            return ThinningRefusal(WholeReason.RESIDUALS_PIPELINED, why)
        refusal = self.profiles.refusal(resolved.spec, model_digest, start or FromNoise())
        if refusal is None and not self.profiles.options(resolved.spec, model_digest):
            return ThinningRefusal(WholeReason.NOTHING_ALLOWED, "its profile allows no step to be left out")
        return refusal

    def _asked(self, resolved: ResolvedRequest) -> ThinningRefusal | None:
        """What the deployment and the request's own words say."""
        if self.mode is ThinningMode.OFF:
            return ThinningRefusal(WholeReason.OFF, "thinning is off")
        if resolved.replay is not None:
            return ThinningRefusal(WholeReason.REPLAY, "a replay takes the steps that were taken")
        if not resolved.may_thin:
            return ThinningRefusal(WholeReason.BINDING_STEPS, "its number of steps is binding")
        if resolved.quality is not None and resolved.quality > self.profiles.alpha:
            why = f"{resolved.quality:g} of the quality is asked for, {self.profiles.alpha:g} is promised"
            return ThinningRefusal(WholeReason.QUALITY_ASKED, why)
        return None
