"""Find the workers that can serve a request with its LoRAs and ControlNets, and count the LoRAs that they must load."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pentimento.domain.components import GB
from pentimento.domain.fleet import Capability
from pentimento.domain.generation import GenerationSpec

# Capabilities of a worker that requests with adapters need.
ADAPTER_CAPABILITIES = frozenset(
    {Capability.LORA, Capability.UPLOADED_LORA, Capability.CONTROLNET, Capability.IP_ADAPTER}
)


@dataclass(frozen=True, slots=True)
class AdapterNeeds:
    """Describe what a request needs of its worker: capabilities, digests of LoRAs and IP-Adapters that the worker must
    have (`loras`), and of LoRAs that it would fetch (`uploaded`), with `sizes` in bytes. ControlNets are served
    elsewhere; a worker must only know how to use them."""

    capabilities: frozenset[Capability] = frozenset()
    loras: frozenset[str] = frozenset()
    uploaded: frozenset[str] = frozenset()
    sizes: frozenset[tuple[str, int]] = frozenset()

    def __bool__(self) -> bool:
        """Return whether the request needs anything."""
        return bool(self.capabilities or self.loras)


@dataclass(frozen=True, slots=True)
class AdapterHoldings:
    """Describe a worker: capabilities, digests of the LoRAs that it has, and of the loaded LoRAs (`resident`).

    `load_s`: seconds that it needs to load a LoRA from the tier that has it, by digest, where it measured them;
    `store_s_per_gb`: the same for a gigabyte from the object store, None without a measurement.
    """

    capabilities: frozenset[Capability] = frozenset()
    loras: frozenset[str] = frozenset()
    resident: frozenset[str] = frozenset()
    load_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    store_s_per_gb: float | None = None

    def __bool__(self) -> bool:
        """Return whether the worker has any capability or LoRA."""
        return bool(self.capabilities or self.loras or self.resident)


NO_NEEDS = AdapterNeeds()
NO_HOLDINGS = AdapterHoldings()


def needs_of(spec: GenerationSpec) -> AdapterNeeds:
    """Return what a request needs of its worker. A LoRA in the object store is available to every worker with
    UPLOADED_LORA."""
    selected = spec.loras
    asked = {
        Capability.LORA: any(lora.object is None for lora in selected),
        Capability.UPLOADED_LORA: any(lora.object is not None for lora in selected),
        Capability.CONTROLNET: bool(spec.controlnets),
        Capability.IP_ADAPTER: bool(spec.image_prompts),
    }
    return AdapterNeeds(
        frozenset(capability for capability, needed in asked.items() if needed),
        frozenset(lora.digest for lora in selected if lora.object is None).union(
            prompt.digest for prompt in spec.image_prompts
        ),
        frozenset(lora.digest for lora in selected if lora.object is not None),
        frozenset((lora.digest, lora.object.size_bytes) for lora in selected if lora.object is not None),
    )


def can_paint(needs: AdapterNeeds, holdings: AdapterHoldings) -> bool:
    """Return whether the worker has everything that the request needs."""
    return needs.capabilities <= holdings.capabilities and needs.loras <= holdings.loras


def loading_s(needs: AdapterNeeds, holdings: AdapterHoldings, unmeasured_s: float) -> float:
    """Return the seconds that the worker would need to load or fetch the request's LoRAs, one after the other. A LoRA
    without a measurement of its tier counts `unmeasured_s`."""
    sizes = dict(needs.sizes)

    def one_s(digest: str) -> float:
        if digest in holdings.load_s:
            return holdings.load_s[digest]
        if digest in needs.uploaded and digest in sizes and holdings.store_s_per_gb is not None:
            return holdings.store_s_per_gb * sizes[digest] / GB
        return unmeasured_s

    return sum(map(one_s, (needs.loras | needs.uploaded) - holdings.resident))


def load_count(needs: AdapterNeeds, holdings: AdapterHoldings) -> int:
    """Return the number of LoRAs that the worker would load or fetch for the request."""
    return len((needs.loras | needs.uploaded) - holdings.resident)


def least_missed(holdings: Sequence[AdapterHoldings]) -> int:
    """Return the index of the worker that requests with LoRAs would miss least, among at least one equally good worker:
    fewest LoRAs that only it has, then fewest that only it has loaded, then the first."""
    if len(set(holdings)) == 1:
        return 0
    having = Counter(digest for one in holdings for digest in one.loras)
    keeping = Counter(digest for one in holdings for digest in one.resident)

    def missed(place: int) -> tuple[int, int]:
        one = holdings[place]
        return sum(having[digest] == 1 for digest in one.loras), sum(keeping[digest] == 1 for digest in one.resident)

    return min(range(len(holdings)), key=missed)
