"""Which workers can paint a request with its LoRAs and ControlNets, and on which of them it costs least."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pentimento.domain.fleet import Capability
from pentimento.domain.generation import ControlNetSelection, LoraSelection

# What a worker must be able to do for requests with adapters.
ADAPTER_CAPABILITIES = frozenset({Capability.LORA, Capability.UPLOADED_LORA, Capability.CONTROLNET})


@dataclass(frozen=True, slots=True)
class AdapterNeeds:
    """What a request asks of its worker: what it must be able to do, the digests of the LoRAs that it must have, and of
    those that it would fetch. ControlNets are served elsewhere; a worker must only know how to use them."""

    capabilities: frozenset[Capability] = frozenset()
    loras: frozenset[str] = frozenset()
    uploaded: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Return whether anything is asked at all."""
        return bool(self.capabilities or self.loras)


@dataclass(frozen=True, slots=True)
class AdapterHoldings:
    """What a worker can do, the digests of the LoRAs that it has, and those of them that need not be loaded first."""

    capabilities: frozenset[Capability] = frozenset()
    loras: frozenset[str] = frozenset()
    resident: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Return whether there is anything at all."""
        return bool(self.capabilities or self.loras or self.resident)


NO_NEEDS = AdapterNeeds()
NO_HOLDINGS = AdapterHoldings()


def needs_of(loras: Iterable[LoraSelection], controlnets: Iterable[ControlNetSelection]) -> AdapterNeeds:
    """Return what a request with those selections, resolved, asks of its worker. A LoRA that lies in the object store
    is there for every worker that fetches such."""
    selected = tuple(loras)
    asked = {
        Capability.LORA: any(lora.object is None for lora in selected),
        Capability.UPLOADED_LORA: any(lora.object is not None for lora in selected),
        Capability.CONTROLNET: bool(tuple(controlnets)),
    }
    return AdapterNeeds(
        frozenset(capability for capability, needed in asked.items() if needed),
        frozenset(lora.digest for lora in selected if lora.object is None),
        frozenset(lora.digest for lora in selected if lora.object is not None),
    )


def can_paint(needs: AdapterNeeds, holdings: AdapterHoldings) -> bool:
    """Return whether the worker has all that the request asks of it."""
    return needs.capabilities <= holdings.capabilities and needs.loras <= holdings.loras


def load_count(needs: AdapterNeeds, holdings: AdapterHoldings) -> int:
    """Return how many LoRAs the worker would have to load, or fetch, for the request."""
    return len((needs.loras | needs.uploaded) - holdings.resident)


def least_missed(holdings: Sequence[AdapterHoldings]) -> int:
    """Return the place of the worker, of several that are as good as one another, that requests with LoRAs would miss
    least: fewest LoRAs that it alone has, then fewest that it alone need not load first, then the first of them. At
    least one is given."""
    if len(set(holdings)) == 1:
        return 0
    having = Counter(digest for one in holdings for digest in one.loras)
    keeping = Counter(digest for one in holdings for digest in one.resident)

    def missed(place: int) -> tuple[int, int]:
        one = holdings[place]
        return sum(having[digest] == 1 for digest in one.loras), sum(keeping[digest] == 1 for digest in one.resident)

    return min(range(len(holdings)), key=missed)
