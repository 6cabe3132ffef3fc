"""Which steps of a request may be left out, as the dataplane is told: by the profile of the model that paints it."""

from dataclasses import dataclass, field

from pentimento.domain.generation import Route
from pentimento.domain.image_request import ResolvedRequest
from pentimento.policies.thinning import WHOLE, ThinningMode, ThinningOffer, ThinningRefusal, WholeReason
from pentimento.profiles.catalogue import StepProfiles
from services.frontdoor.routing.starts import steps_saved


@dataclass(frozen=True)
class ThinningOffers:
    """The deployment's mode and profiles. Off, or without a profile of the model, nothing is offered. A thinned picture
    enters the cache where it keeps `cached_share` of the quality of all steps in the mean."""

    mode: ThinningMode = ThinningMode.OFF
    profiles: StepProfiles = field(default_factory=StepProfiles)
    cached_share: float = 1.0

    def offer(self, resolved: ResolvedRequest, route: Route) -> ThinningOffer:
        """Return what may be left out of a request on that route."""
        if self._asked(resolved) is not None:
            return WHOLE
        options = self.profiles.options(resolved.spec, route)
        saved = steps_saved(route.start)
        return ThinningOffer(resolved.spec.num_inference_steps, saved, options) if options else WHOLE

    def thinned_is_cached(self, offer: ThinningOffer) -> bool:
        """Return whether the picture of a request enters the cache whichever of its options is taken: a thinning may
        change while the picture is painted."""
        return all(option.share >= self.cached_share for option in offer.usable)

    def refusal(self, resolved: ResolvedRequest, route: Route) -> ThinningRefusal | None:
        """Return why nothing of the request is left out, whatever the load; None where something may be."""
        return self._asked(resolved) or self.profiles.refusal(resolved.spec, route)

    def _asked(self, resolved: ResolvedRequest) -> ThinningRefusal | None:
        """What the deployment and the request's own words say."""
        if self.mode is ThinningMode.OFF:
            return ThinningRefusal(WholeReason.OFF, "thinning is off")
        if resolved.replay is not None:
            return ThinningRefusal(WholeReason.REPLAY, "a replay takes the steps that were taken")
        if not resolved.may_thin:
            return ThinningRefusal(WholeReason.BINDING_STEPS, "its number of steps is binding")
        if resolved.quality is not None and resolved.quality > self.profiles.alpha:
            why = f"{resolved.quality:g} of the quality is requested, {self.profiles.alpha:g} is promised"
            return ThinningRefusal(WholeReason.QUALITY_ASKED, why)
        return None
