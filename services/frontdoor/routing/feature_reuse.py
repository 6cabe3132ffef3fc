"""Choose the steps of a request that reuse deep features of the network, by the profile of its model."""

from dataclasses import dataclass, field, replace

from pentimento.domain.generation import Route
from pentimento.domain.image_request import ResolvedRequest
from pentimento.policies.thinning import ThinningOption, ThinningRefusal, WholeReason, thinned_steps
from pentimento.profiles.catalogue import FeatureReuseMode, StepProfiles
from pentimento.profiles.document import ProfileKind
from services.frontdoor.routing.thinning import CACHED_SHARE


@dataclass(frozen=True)
class FeatureReuse:
    """Hold the deployment's mode and profiles. A schedule is used if it keeps a mean share `least_share` of the full
    quality: its images and latents enter the cache like all others."""

    mode: FeatureReuseMode = FeatureReuseMode.ASKED
    profiles: StepProfiles = field(default_factory=lambda: StepProfiles(kind=ProfileKind.FEATURES))
    least_share: float = CACHED_SHARE

    def scheduled(self, resolved: ResolvedRequest, route: Route) -> Route:
        """Return the route with the request's `full_steps`; none if every step runs the whole network. A replay's
        route keeps its own."""
        if resolved.replay is not None or self._refusal(resolved, route) is not None:
            return route
        options = self._options(resolved, route)
        fewest = min(options, key=lambda option: (option.total, -option.share))
        return replace(route, full_steps=thinned_steps(fewest, resolved.spec.num_inference_steps))

    def why(self, resolved: ResolvedRequest, route: Route) -> str:
        """Return a sentence on the request's steps; "" for a request without a wish in mode ASKED."""
        if self.mode is FeatureReuseMode.ASKED and resolved.feature_reuse is None:
            return ""
        refusal = self._refusal(resolved, route)
        if refusal is not None:
            return f"none reused, {refusal.reason.value}: {refusal.message}"
        full, count = self.scheduled(resolved, route).full_steps, resolved.spec.num_inference_steps
        return f"reused from step {full[0]} on, where {len(full)} of {count - full[0]} steps run the whole network"

    def _options(self, resolved: ResolvedRequest, route: Route) -> tuple[ThinningOption, ...]:
        found = self.profiles.options(resolved.spec, route)
        return tuple(option for option in found if option.share >= self.least_share)

    def _refusal(self, resolved: ResolvedRequest, route: Route) -> ThinningRefusal | None:
        wanted, quality = resolved.feature_reuse, resolved.quality
        if not (self.mode is FeatureReuseMode.AUTO if wanted is None else wanted):
            return ThinningRefusal(WholeReason.NOT_ASKED, "the request runs every step in full")
        if quality is not None and quality > self.profiles.alpha:
            why = f"{quality:g} of the quality is requested, {self.profiles.alpha:g} is promised"
            return ThinningRefusal(WholeReason.QUALITY_ASKED, why)
        refusal = self.profiles.refusal(resolved.spec, route)
        if refusal is None and not self._options(resolved, route):
            why = f"no schedule of its profile keeps {self.least_share:g} of the quality in the mean"
            return ThinningRefusal(WholeReason.NOTHING_ALLOWED, why)
        return refusal
