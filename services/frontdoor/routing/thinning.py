"""Offer the dataplane the steps of a request that may be skipped, by the profile of its model."""

from dataclasses import dataclass, field

from pentimento.domain.generation import Route
from pentimento.domain.image_request import ResolvedRequest
from pentimento.policies.thinning import WHOLE, ThinningMode, ThinningOffer, ThinningRefusal, WholeReason
from pentimento.profiles.catalogue import StepProfiles
from services.frontdoor.routing.starts import steps_saved

# Mean share of the full quality that thinned images in the cache keep, and images with reused features.
CACHED_SHARE = 0.99


@dataclass(frozen=True)
class ThinningOffers:
    """Hold the deployment's mode and profiles. If the mode is off, or the model has no profile, nothing is offered. A
    thinned image enters the cache if it keeps a mean share `CACHED_SHARE` of the full quality."""

    mode: ThinningMode = ThinningMode.OFF
    profiles: StepProfiles = field(default_factory=StepProfiles)

    def offer(self, resolved: ResolvedRequest, route: Route) -> ThinningOffer:
        """Return the steps that may be skipped in a request on that route."""
        if self._asked(resolved) is not None:
            return WHOLE
        options = self.profiles.options(resolved.spec, route)
        saved = steps_saved(route.start)
        return ThinningOffer(resolved.spec.num_inference_steps, saved, options) if options else WHOLE

    def thinned_is_cached(self, offer: ThinningOffer) -> bool:
        """Return whether the image may enter the cache with every option, as the thinning may change during the run."""
        return all(option.share >= CACHED_SHARE for option in offer.usable)

    def refusal(self, resolved: ResolvedRequest, route: Route) -> ThinningRefusal | None:
        """Return why no step of the request is skipped at any load; None if steps may be."""
        return self._asked(resolved) or self.profiles.refusal(resolved.spec, route)

    def _asked(self, resolved: ResolvedRequest) -> ThinningRefusal | None:
        """Return the refusal of the deployment's mode or of the request's own terms."""
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
