"""Decide by profiles which steps are skipped, reuse deep features, or have residuals of the step before."""

from dataclasses import dataclass, field, replace

from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import ControlNetMode, FromNoise, GenerationSpec, Route, Start
from pentimento.domain.image_request import ResolvedRequest
from pentimento.policies.latent_pairing import PairingMode, can_pair
from pentimento.policies.residual_pipelining import (
    LEAST_WAIT_SHARE,
    PipeliningMode,
    ResidualWaits,
    allowed_from_step,
    allowed_from_step_of_all,
    pipelined_from,
)
from pentimento.policies.thinning import (
    WHOLE,
    ThinningMode,
    ThinningOffer,
    ThinningOption,
    ThinningRefusal,
    WholeReason,
    thinned_steps,
)
from pentimento.profiles.catalogue import FeatureReuseMode, ProfileSet, StepProfiles
from pentimento.profiles.document import ProfileKind
from pentimento.profiles.rules import ThresholdRule
from services.frontdoor.routing.light_starts import LightStarts
from services.frontdoor.routing.starts import PoolOption, reused_share
from services.frontdoor.workers.catalogue import AdapterCatalogue

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
        saved = route.start.saved_steps
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


@dataclass(frozen=True)
class FeatureReuse:
    """Hold the deployment's mode and profiles. A schedule is used if it keeps a mean share `least_share` of the full
    quality: its images and latents enter the cache like all others. For requests without a wish it also satisfies
    the rule LOWER_BOUND, or the deployment's, and no image is `compared` with that of another start or model."""

    mode: FeatureReuseMode = FeatureReuseMode.AUTO
    profiles: StepProfiles = field(default_factory=lambda: StepProfiles(kind=ProfileKind.FEATURES))
    least_share: float = CACHED_SHARE

    def scheduled(self, resolved: ResolvedRequest, route: Route, *, compared: bool = False) -> Route:
        """Return the route with the request's `full_steps`; none if every step runs the whole network. A replay's
        route keeps its own."""
        if resolved.replay is not None or self._refusal(resolved, route, compared) is not None:
            return route
        options = self._options(resolved, route)
        fewest = min(options, key=lambda option: (option.total, -option.share))
        return replace(route, full_steps=thinned_steps(fewest, resolved.spec.num_inference_steps))

    def why(self, resolved: ResolvedRequest, route: Route, *, compared: bool = False) -> str:
        """Return a sentence on the request's steps; "" for a request without a wish in mode ASKED."""
        if self.mode is FeatureReuseMode.ASKED and resolved.feature_reuse is None:
            return ""
        refusal = self._refusal(resolved, route, compared)
        if refusal is not None:
            return f"none reused, {refusal.reason.value}: {refusal.message}"
        full, count = self.scheduled(resolved, route).full_steps, resolved.spec.num_inference_steps
        return f"reused from step {full[0]} on, where {len(full)} of {count - full[0]} steps run the whole network"

    def _options(self, resolved: ResolvedRequest, route: Route) -> tuple[ThinningOption, ...]:
        found = self._profiles(resolved).options(resolved.spec, route)
        return tuple(option for option in found if option.share >= self.least_share)

    def _profiles(self, resolved: ResolvedRequest) -> StepProfiles:
        if resolved.feature_reuse or self.profiles.rule is not None:
            return self.profiles
        return replace(self.profiles, rule=ThresholdRule.LOWER_BOUND)

    def _refusal(self, resolved: ResolvedRequest, route: Route, compared: bool) -> ThinningRefusal | None:
        wanted, quality = resolved.feature_reuse, resolved.quality
        if not (self.mode is FeatureReuseMode.AUTO if wanted is None else wanted):
            return ThinningRefusal(WholeReason.NOT_ASKED, "the request runs every step in full")
        if wanted is None and not resolved.may_thin:
            return ThinningRefusal(WholeReason.BINDING_STEPS, "its number of steps is binding")
        if wanted is None and (compared or route.stages):
            why = "its image may be compared with that of another start or model"
            return ThinningRefusal(WholeReason.COMPARED, why)
        if quality is not None and quality > self.profiles.alpha:
            why = f"{quality:g} of the quality is requested, {self.profiles.alpha:g} is promised"
            return ThinningRefusal(WholeReason.QUALITY_ASKED, why)
        refusal = self._profiles(resolved).refusal(resolved.spec, route)
        if refusal is None and not self._options(resolved, route):
            why = f"no schedule of its profile keeps {self.least_share:g} of the quality in the mean"
            return ThinningRefusal(WholeReason.NOTHING_ALLOWED, why)
        return refusal


class ControlPipelining:
    """Hold the deployment's mode and profiles, and how long images waited for their ControlNets."""

    def __init__(self, mode: PipeliningMode, profiles: ProfileSet) -> None:
        self._mode = mode
        self._profiles = profiles
        self._waits = ResidualWaits()

    def from_step(self, spec: GenerationSpec, model_digest: str) -> int:
        """Return the first pipelined step of the request's schedule on that model; 0 for never."""
        bounds = (self._profiles.pipelining(model_digest, digest) for digest in _digests(spec))
        allowed = allowed_from_step_of_all(allowed_from_step(one, spec.num_inference_steps) for one in bounds)
        return pipelined_from(self._mode, allowed, self._waits.share(_digests(spec)))

    def why(self, spec: GenerationSpec, route: Route) -> str:
        """Return a sentence on the mode of a request with ControlNets, "" for one without."""
        if not spec.controlnets:
            return ""
        if route.pipelined_from_step:
            return f"one step old from step {route.pipelined_from_step}, {self._seen(spec)}"
        return f"each step waits for its own, {self._reason(spec, route.model_digest)}"

    def _reason(self, spec: GenerationSpec, model_digest: str) -> str:
        if self._mode is PipeliningMode.OFF:
            return "OFF: pipelining is off"
        for one in spec.controlnets:
            bounds = self._profiles.pipelining(model_digest, one.digest)
            if not bounds:
                return f"PROFILE_MISSING: no pipelining profile of {spec.model} with {one.name}"
            if not allowed_from_step(bounds, spec.num_inference_steps):
                return f"NOTHING_ALLOWED: the profile of {one.name} allows none at {spec.num_inference_steps} steps"
        return f"SHORT_WAITS: {self._seen(spec)}"

    def _seen(self, spec: GenerationSpec) -> str:
        share = self._waits.share(_digests(spec))
        seen = "no image has waited yet" if share is None else f"images waited for {share:.0%} of a step"
        least = f"{LEAST_WAIT_SHARE:.0%} is too long"
        return f"{seen}, {least}" if self._mode is PipeliningMode.AUTO else "by the settings"

    def learn(self, spec: GenerationSpec, wait_share: float | None) -> None:
        """Record that an image waited for that share of its synchronous steps; ignore None, for unknown."""
        if wait_share is not None and 0.0 <= wait_share <= 1.0 and spec.controlnets:
            self._waits.learn(_digests(spec), wait_share)


def _digests(spec: GenerationSpec) -> list[str]:
    return [controlnet.digest for controlnet in spec.controlnets]


FROM_NOISE = FromNoise()


@dataclass(frozen=True)
class StepRules:
    """Hold the rules of one deployment for the steps of a request, by the mechanism."""

    adapters: AdapterCatalogue
    pipelining: ControlPipelining
    pairing: PairingMode
    thinning: ThinningOffers
    features: FeatureReuse
    light_starts: LightStarts

    def adapted(self, route: Route, spec: GenerationSpec, held: HeldModel) -> Route:
        """Return the route with the steps before the request's LoRAs take effect, and with the mode of its ControlNets,
        None without any."""
        from_step = self.pipelining.from_step(spec, held.model_digest)
        mode = ControlNetMode.PIPELINED if from_step else ControlNetMode.SYNCHRONOUS
        return replace(
            route,
            lora_patch_step=self.adapters.lora_patch_step(spec, held),
            controlnet_mode=mode if spec.controlnets else None,
            pipelined_from_step=from_step,
        )

    def expected_thinning(self, resolved: ResolvedRequest, held: HeldModel, start: Start = FROM_NOISE) -> ThinningOffer:
        """Return the steps that may be skipped in a request with that start, before its route is decided."""
        route = Route("", start, held.model, held.model_digest)
        return self.thinning.offer(resolved, self.adapted(route, resolved.spec, held))

    def thinning_of(self, option: PoolOption) -> ThinningOffer:
        """Return the steps that may be skipped, with the share of the work that reused features leave."""
        share = reused_share(option.route, option.resolved.spec.num_inference_steps, option.held)
        return replace(self.thinning.offer(option.resolved, option.route), reused_share=share)

    def reusing_features(self, option: PoolOption) -> PoolOption:
        """Return the option with the steps that run the whole network in its route."""
        route = self.features.scheduled(option.resolved, option.route, compared=option.trial is not None)
        return replace(option, route=route)

    def may_pair(self, option: PoolOption) -> bool:
        """Return whether two workers may compute the halves of the request's guidance."""
        return self.pairing is not PairingMode.OFF and can_pair(option.resolved.spec, option.route)
