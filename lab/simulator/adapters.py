"""Map the LoRAs and ControlNets of arrivals to devices, and report what devices hold to the dataplane."""

from collections.abc import Iterable

from lab.emulation.adapter_costs import AdapterCosts
from lab.emulation.adapters import PLAIN, AttemptAdapters
from lab.workloads import Arrival
from pentimento.domain.fleet import Capability
from pentimento.policies.adapter_needs import ADAPTER_CAPABILITIES, NO_NEEDS, AdapterHoldings, AdapterNeeds


class SimulatedAdapters:
    """Does nothing if the scenario simulates no adapters."""

    def __init__(self, costs: AdapterCosts, arrivals: Iterable[Arrival]) -> None:
        self._simulated = costs.resident_count > 0
        used = (name for arrival in arrivals for name in arrival.loras) if self._simulated else ()
        self._loras = frozenset(used)
        self._told: dict[tuple[str, int], AdapterHoldings] = {}

    def needs_of(self, arrival: Arrival) -> AdapterNeeds:
        """Return what the arrival asks of its worker."""
        if not self._simulated:
            return NO_NEEDS
        asked = {Capability.LORA: arrival.loras, Capability.CONTROLNET: arrival.controlnets}
        capabilities = frozenset(capability for capability, names in asked.items() if names)
        return AdapterNeeds(capabilities, frozenset(arrival.loras))

    def of(self, arrival: Arrival) -> AttemptAdapters:
        """Return the adapters of an arrival."""
        if not self._simulated:
            return PLAIN
        return AttemptAdapters(tuple((name, 1.0) for name in sorted(arrival.loras)), bool(arrival.controlnets))

    def news(self, worker_id: str, generation: int, resident: Iterable[str]) -> AdapterHoldings | None:
        """Return what the device holds; None if the dataplane knows it."""
        if not self._simulated:
            return None
        holdings = AdapterHoldings(ADAPTER_CAPABILITIES, self._loras, frozenset(resident))
        if self._told.get((worker_id, generation)) == holdings:
            return None
        self._told[worker_id, generation] = holdings
        return holdings
