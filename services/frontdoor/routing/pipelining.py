"""Which requests use residuals that are a step old (Katz, section 5), decided once each, when its route is."""

from pentimento.domain.generation import ControlNetMode, GenerationSpec
from pentimento.policies.residual_pipelining import PipeliningRule, ResidualWaits
from services.frontdoor.workers.adapter_catalogue import AdapterCatalogue


class ControlPipelining:
    """The deployment's rule, what ControlNets allow, and how long pictures were seen to wait for them."""

    def __init__(self, rule: PipeliningRule, adapters: AdapterCatalogue) -> None:
        self._rule = rule
        self._adapters = adapters
        self._waits = ResidualWaits()

    def from_step(self, spec: GenerationSpec) -> int:
        """Return the step of the schedule from which on the request is pipelined, 0 for a synchronous one."""
        allowed = self._adapters.pipelined_from_step(spec)
        return self._rule.from_step(allowed, self._waits.share(_digests(spec)))

    def learn(self, spec: GenerationSpec, wait_share: float | None) -> None:
        """Changes state: a picture was painted, and waited for that share of its synchronous steps; None where it
        cannot tell."""
        if wait_share is not None and 0.0 <= wait_share <= 1.0 and spec.controlnets:
            self._waits.learn(_digests(spec), wait_share)


def mode_of(spec: GenerationSpec, pipelined_from_step: int) -> ControlNetMode | None:
    """Return the mode as a route names it; None for a request without ControlNets."""
    if not spec.controlnets:
        return None
    return ControlNetMode.PIPELINED if pipelined_from_step else ControlNetMode.SYNCHRONOUS


def _digests(spec: GenerationSpec) -> list[str]:
    return [controlnet.digest for controlnet in spec.controlnets]
