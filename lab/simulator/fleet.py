"""The simulated devices, and the models on them."""

from dataclasses import replace
from random import Random

from lab.emulation.cost_draws import slower
from lab.emulation.costs import ModelCosts
from lab.emulation.device import EmulatedDevice
from lab.emulation.jobs import DeviceListener, EmulatedJob
from lab.emulation.speed import Both, SharedProcessors, SpeedCourse
from lab.runs import StartKind
from lab.simulator.agenda import Agenda
from lab.simulator.cache import MISS, CacheAnswer
from lab.simulator.ledger import SimulatedImage, SimulatedRequest
from lab.simulator.scenario import Scenario, SimulatedDevices
from lab.workloads import Arrival
from pentimento.dataplane.events import AttemptKey, SpeedProfile, WorkerReported
from pentimento.domain.components import Tier
from pentimento.domain.fleet import Plan
from pentimento.policies.plan.inputs import AllocationProfile
from pentimento.policies.thinning import WHOLE, ThinningOffer, ThinningOption, thinned_steps

RETRIEVAL_POOL = "retrieval"
# Answers from the cache take no device: the lane that hands them out is never full.
_RETRIEVAL_CREDITS = 1_000_000


class SimulatedFleet:
    """`devices` by worker id; `available` models by kind of device; `profiles` as allocators read them."""

    def __init__(
        self, scenario: Scenario, agenda: Agenda, listener: DeviceListener[AttemptKey], random: Random
    ) -> None:
        self._scenario = scenario
        self._agenda = agenda
        self._listener = listener
        # When workers that were lost are back.
        self._back_s: dict[str, float] = {}
        self._costs: dict[str, dict[str, ModelCosts]] = {}
        self._limits: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._models_of_pools: dict[str, str] = {}
        self._thinning = {model.name: model.thinning for model in scenario.models}
        self._steps = {model.name: model.costs.step_count for model in scenario.models}
        self.devices: dict[str, EmulatedDevice[AttemptKey]] = {}
        # Models on each worker's local disk, and the costs of the model that it was last assigned.
        self._disks: dict[str, set[str]] = {}
        self._assigned: dict[str, ModelCosts] = {}
        self.load_s = 0.0
        self.available: dict[str, tuple[str, ...]] = {}
        for group, devices in enumerate(scenario.devices):
            kind = devices.kind or f"w{group}"
            self.available[kind] = devices.models or tuple(self._steps)
            self._costs[kind] = {model.name: model.costs.slower(1.0 / devices.speed) for model in scenario.models}
            self._limits[kind] = devices.max_batch
            self._counts[kind] = devices.count
            self._add(kind, devices, agenda, listener, random)
        self.profiles = tuple(
            AllocationProfile(
                model,
                kind,
                size,
                costs.run_s(size),
                0,
                costs.load.mean_s,
                costs.step_count,
                costs.prepare.mean_s,
                costs.finish.mean_s,
            )
            for kind, by_model in self._costs.items()
            for model, costs in by_model.items()
            for size in range(1, min(costs.max_batch, self._limits[kind]) + 1)
        )

    def follow(self, plan: Plan) -> None:
        """Changes state: devices take the models and batch sizes that the plan gives them."""
        self._models_of_pools.update((pool.pool, pool.model) for pool in plan.pools)
        for assignment in plan.assignments:
            device = self.devices[assignment.worker_id]
            if not device.lost:
                limit = self._limits[device.kind]
                size = min(assignment.max_batch_size or limit, limit)
                device.assign(self._costs_to_load(device, assignment.model), size)
                if device.adapters.load_ahead(assignment.prefetch, self._agenda.now):
                    self._listener.device_reports(device)

    def thin(self, model: str, options: tuple[ThinningOption, ...]) -> None:
        """Change the thinning options of a model's later requests, in a scenario that has some."""
        self._thinning[model] = options

    def tier_of(self, worker_id: str, model: str) -> Tier:
        """Return the fastest tier that has a model for a worker."""
        return Tier.DISK if model in self._disks[worker_id] else Tier.STORE

    def _costs_to_load(self, device: EmulatedDevice[AttemptKey], model: str) -> ModelCosts:
        """Return the costs of a model that is assigned to a device, with the load from the tier that has it now.
        Changes state: the model comes to the disk, and the load counts."""
        known = self._assigned.get(device.worker_id)
        if known is not None and known.model == model:
            return known
        costs = self._costs[device.kind][model]
        if self.tier_of(device.worker_id, model) is Tier.STORE:
            costs = replace(costs, load=slower(costs.load, self._scenario.store_factor))
        if model != device.model:
            self.load_s += costs.load.mean_s
        self._disks[device.worker_id].add(model)
        self._assigned[device.worker_id] = costs
        return costs

    def lose(self, worker_id: str, for_s: float) -> list[EmulatedJob[AttemptKey]]:
        """Changes state: the worker is lost for so long, or until another outage of it ends that does so later. Return
        the attempts that it had."""
        back_s = self._agenda.now + for_s
        if back_s > self._back_s.get(worker_id, 0.0):
            self._back_s[worker_id] = back_s
            self._agenda.at(back_s, self._revive, (worker_id, back_s))
        return self.devices[worker_id].lose()

    def _revive(self, due: tuple[str, float]) -> None:
        worker_id, back_s = due
        if self._back_s[worker_id] == back_s:
            self.devices[worker_id].revive()

    def holding(self, model: str) -> list[EmulatedDevice[AttemptKey]]:
        """Return the workers that would accept a request for the model now."""
        devices = self.devices.values()
        return [device for device in devices if device.costs.model == model and not device.draining and not device.lost]

    def model_of(self, pool: str) -> str:
        """The model that the plan gives the pool; a pool that no plan names is called after its model."""
        return self._models_of_pools.get(pool, pool)

    def digest_of(self, model: str) -> str:
        return f"simulated:{model}"

    def steps_of(self, model: str, arrival: Arrival) -> int:
        """Return the steps that a request names for its model; every other model takes its default."""
        asked_for = arrival.model or self._scenario.default_model
        own = self._steps.get(model, arrival.steps)
        return arrival.steps or own if model == asked_for else own

    def thinning_of(self, model: str, arrival: Arrival, start: CacheAnswer = MISS) -> ThinningOffer:
        """Return the thinning options of a request on the model: for starts from noise with the measured number of
        steps."""
        options = self._thinning.get(model, ())
        steps = self.steps_of(model, arrival)
        if not options or start.kind is not StartKind.NOISE or steps != self._steps[model]:
            return WHOLE
        return ThinningOffer(steps, 0, options)

    def thinned_share(self, model: str, steps: tuple[int, ...]) -> float:
        """The mean share of the full run's quality that a thinning keeps; 1 for none."""
        options = self._thinning.get(model, ())
        return next((one.share for one in options if thinned_steps(one, self._steps[model]) == steps), 1.0)

    def speed_profiles(self) -> tuple[SpeedProfile, ...]:
        """Return the initial predictions: e(b) of each model up to its batch limit, averaged over the devices that may
        hold it."""
        return tuple(self._speed_profile(model) for model in self._steps)

    def retrieval_report(self) -> WorkerReported:
        """Return the report of the replica that answers with cached images."""
        digest = self.digest_of(RETRIEVAL_POOL)
        return WorkerReported(RETRIEVAL_POOL, RETRIEVAL_POOL, digest, 1, _RETRIEVAL_CREDITS, pinned=True)

    def quality_of(self, request: SimulatedRequest, painted: SimulatedImage) -> float | None:
        """None where the scenario says nothing about the model's quality."""
        name = painted.model or self._scenario.default_model
        model = self._scenario.model(name)
        if model.quality is None:
            return None
        if painted.start.kind is not StartKind.NOISE:
            # Confidence was measured on images from noise.
            mean = model.quality * model.reuse_quality * painted.start.kept
            return mean + model.reuse_deviation * request.chance.hit
        quality = (model.quality + model.quality_spread * (request.draw - 0.5)) * painted.thinned_share
        return quality + model.deviation * request.chance.light

    def _add(
        self, kind: str, devices: SimulatedDevices, agenda: Agenda, listener: DeviceListener[AttemptKey], random: Random
    ) -> None:
        costs = self._costs[kind][devices.resident]
        for number in range(devices.count):
            worker_id = f"{kind}-{number}"
            all_local = self._scenario.store_factor == 1.0
            self._disks[worker_id] = set(self._steps) if all_local else {devices.resident}
            settings = replace(self._scenario.device_settings, each_step=self._scenario.thins)
            self.devices[worker_id] = EmulatedDevice(
                worker_id,
                kind,
                agenda,
                listener,
                random,
                settings,
                costs,
                devices.max_batch,
                self._course(worker_id, devices.speed_changes),
                self._scenario.adapters,
            )

    def _course(self, worker_id: str, own: SpeedCourse) -> SpeedCourse:
        """Return the course of a worker's speed: its own, slowed by others that share its processors."""
        if not self._scenario.processors:
            return own

        def others() -> int:
            return sum(device.running_count > 0 for name, device in self.devices.items() if name != worker_id)

        return Both(own, SharedProcessors(self._scenario.processors, others))

    def _speed_profile(self, model: str) -> SpeedProfile:
        kinds = [kind for kind in self._costs if model in self.available[kind]] or list(self._costs)
        known = [(self._costs[kind][model], self._counts[kind]) for kind in kinds]
        count = sum(number for _, number in known)
        most = min(known[0][0].max_batch, max(self._limits[kind] for kind in kinds))
        seconds = tuple(
            (size, sum(costs.step(size).mean_s * number for costs, number in known) / count / self._scenario.pixels)
            for size in range(1, most + 1)
        )
        fixed_s = sum((costs.prepare.mean_s + costs.finish.mean_s) * number for costs, number in known) / count
        return SpeedProfile(model, seconds, fixed_s)
