"""The LoRAs and ControlNets that pictures of a thinning profile were painted with."""

from dataclasses import dataclass

from pentimento.domain.adapters import AdapterKind
from pentimento.domain.generation import GenerationSpec


@dataclass(frozen=True)
class MeasuredAdapter:
    """A LoRA or a ControlNet by its digest, its scale, and of a ControlNet the shares of the schedule, 0..1, between
    which it acts."""

    digest: str
    scale: float = 1.0
    kind: AdapterKind = AdapterKind.LORA
    start_fraction: float = 0.0
    end_fraction: float = 1.0


def measured_adapters(spec: GenerationSpec) -> tuple[MeasuredAdapter, ...]:
    """Return the LoRAs and ControlNets of a picture, in an order of their own: their sum is the same in any."""
    loras = [MeasuredAdapter(lora.digest, lora.scale) for lora in spec.loras]
    controlnets = [
        MeasuredAdapter(
            net.digest, net.conditioning_scale, AdapterKind.CONTROLNET, net.start_fraction, net.end_fraction
        )
        for net in spec.controlnets
    ]
    return ordered(loras + controlnets)


def ordered(adapters: list[MeasuredAdapter] | tuple[MeasuredAdapter, ...]) -> tuple[MeasuredAdapter, ...]:
    """Return them in the order that is compared."""
    return tuple(sorted(adapters, key=lambda one: (one.kind.value, one.digest, one.scale, one.start_fraction)))
