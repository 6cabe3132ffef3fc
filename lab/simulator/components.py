"""Report to the simulated controller where models are, and the LoRAs that devices hold, as workers do."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from lab.emulation.adapter_costs import AdapterCosts
from lab.emulation.device import EmulatedDevice
from lab.simulator.fleet import SimulatedFleet
from lab.simulator.scenario import Scenario
from lab.workloads import Arrival
from pentimento.dataplane.events import AttemptKey
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.components import GB, StoredBytes, Tier, TierSpeed
from pentimento.domain.fleet import Replica, ReplicaReport
from pentimento.policies.plan.inputs import ReplicaView


class SimulatedReports:
    """Describe workers. Each LoRA has a gigabyte, and each model one for every second of its load from the disk, so
    that speeds and sizes give the scenario's seconds."""

    def __init__(self, scenario: Scenario, fleet: SimulatedFleet, arrivals: Iterable[Arrival]) -> None:
        self._scenario = scenario
        self._fleet = fleet
        self._names = (
            sorted({name for arrival in arrivals for name in arrival.loras})
            if self._costs.resident_count and scenario.reports_loras
            else []
        )

    @property
    def _costs(self) -> AdapterCosts:
        return self._scenario.adapters

    @cached_property
    def _loras(self) -> tuple[Adapter, ...]:
        return tuple(Adapter(name, AdapterKind.LORA, f"simulated:{name}", "") for name in self._names)

    @cached_property
    def _lora_files(self) -> tuple[StoredBytes, ...]:
        return tuple(StoredBytes(name, Tier.DISK, GB) for name in self._names)

    def of(self, worker: Replica, device: EmulatedDevice[AttemptKey]) -> ReplicaView:
        """Return the worker with its report."""
        load_s = {profile.model: profile.load_s for profile in self._fleet.profiles if profile.device == device.kind}
        tiered = {} if self._scenario.store_factor == 1.0 or not self._scenario.reports_tiers else load_s
        models = tuple(
            StoredBytes(model, self._fleet.tier_of(device.worker_id, model), round(seconds * GB))
            for model, seconds in sorted(tiered.items())
        )
        described = replace(
            worker,
            adapters=self._loras,
            resident_models=(device.model, *(device.adapters.resident if self._names else ())),
            stored=(*models, *self._lora_files),
            adapter_memory_bytes=self._costs.resident_count * GB if self._names else 0,
        )
        speeds = (TierSpeed(Tier.DISK, 1.0), TierSpeed(Tier.STORE, self._scenario.store_factor))
        lora_speeds = (TierSpeed(Tier.DISK, self._costs.load.mean_s),)
        return ReplicaView(described, ReplicaReport(worker.instance_id, 1, load_speeds=speeds, lora_speeds=lora_speeds))
