"""Decide once per request, with its route, whether its residuals may be one step old (Katz, section 5)."""

from pentimento.domain.generation import ControlNetMode, GenerationSpec, Route
from pentimento.policies.residual_pipelining import (
    LEAST_WAIT_SHARE,
    PipeliningMode,
    ResidualWaits,
    allowed_from_step,
    allowed_from_step_of_all,
    pipelined_from,
)
from pentimento.profiles.catalogue import ProfileSet


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


def mode_of(spec: GenerationSpec, pipelined_from_step: int) -> ControlNetMode | None:
    """Return the mode as a route names it; None for a request without ControlNets."""
    if not spec.controlnets:
        return None
    return ControlNetMode.PIPELINED if pipelined_from_step else ControlNetMode.SYNCHRONOUS


def _digests(spec: GenerationSpec) -> list[str]:
    return [controlnet.digest for controlnet in spec.controlnets]
