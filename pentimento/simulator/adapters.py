"""LoRAs on simulated devices: which of them each one keeps, and what it costs to load another."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from pentimento.devices.profile import NOTHING, Cost
from pentimento.domain.fleet import Capability
from pentimento.policies.adapter_needs import (
    ADAPTER_CAPABILITIES,
    NO_NEEDS,
    AdapterHoldings,
    AdapterNeeds,
    load_count,
)
from pentimento.workloads import Arrival


@dataclass(frozen=True)
class AdapterSettings:
    """`resident_count`: LoRAs that a device keeps, those used last; 0 where LoRAs and ControlNets of arrivals are not
    simulated. `load`: seconds before an attempt begins, for each LoRA that its device does not keep."""

    resident_count: int = 0
    load: Cost = NOTHING


class AdapterShelves:
    """What each device keeps. `loaded_count`: loads so far, on all of them."""

    def __init__(self, settings: AdapterSettings, arrivals: Iterable[Arrival]) -> None:
        self._settings = settings
        used = (name for arrival in arrivals for name in arrival.loras) if settings.resident_count else ()
        self._loras = frozenset(used)
        self._kept: dict[str, OrderedDict[str, None]] = {}
        self._told: dict[tuple[str, int], AdapterHoldings] = {}
        self.loaded_count = 0

    def needs_of(self, arrival: Arrival) -> AdapterNeeds:
        """Return what the arrival asks of its worker; nothing where adapters are not simulated."""
        if not self._settings.resident_count:
            return NO_NEEDS
        asked = {Capability.LORA: arrival.loras, Capability.CONTROLNET: arrival.controlnets}
        capabilities = frozenset(capability for capability, names in asked.items() if names)
        return AdapterNeeds(capabilities, frozenset(arrival.loras))

    def news(self, worker_id: str, generation: int) -> AdapterHoldings | None:
        """Return what the device has, None where its dataplane was told already. A device begins with nothing."""
        if not self._settings.resident_count:
            return None
        if (worker_id, generation) not in self._told:
            self._kept[worker_id] = OrderedDict()
        holdings = self._holdings(worker_id)
        if self._told.get((worker_id, generation)) == holdings:
            return None
        self._told[worker_id, generation] = holdings
        return holdings

    def take(self, worker_id: str, arrival: Arrival, rng: Random) -> float:
        """Have the device use the arrival's LoRAs. Return the seconds in which it loads those that it does
        not keep."""
        if not self._settings.resident_count:
            return 0.0
        count = load_count(self.needs_of(arrival), self._holdings(worker_id))
        self.loaded_count += count
        kept = self._kept[worker_id]
        for name in arrival.loras:
            kept.pop(name, None)
            kept[name] = None
        while len(kept) > self._settings.resident_count:
            kept.popitem(last=False)
        return sum(self._settings.load.draw(rng) for _ in range(count))

    def _holdings(self, worker_id: str) -> AdapterHoldings:
        return AdapterHoldings(ADAPTER_CAPABILITIES, self._loras, frozenset(self._kept.get(worker_id, ())))
