"""The simulated system as one value: models, devices, policy, delays, cache, cascade."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lab.emulation.adapter_costs import NO_ADAPTER_COSTS, AdapterCosts
from lab.emulation.costs import ModelCosts
from lab.emulation.jobs import DeviceSettings
from lab.emulation.speed import STEADY, SpeedCourse
from lab.simulator.cache import CacheSettings
from pentimento.dataplane import DataplaneSettings
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.tenants import TenantQuota
from pentimento.policies.plan.registry import ServingPolicy
from pentimento.policies.plan.settings import DeferralCurve
from pentimento.policies.thinning import ThinningMode, ThinningOption
from pentimento.profiles.costs import NOTHING, Cost


@dataclass(frozen=True)
class SimulatedModel:
    """A model. `quality` is the mean of a run from noise. `quality_spread`: the most confident light images are better
    than the mean by half of it, the least confident worse. `reuse_quality`: share that a start from the cache keeps.
    `deviation`, `reuse_deviation`: standard deviations of a single image's quality around these means. `thinning`:
    options for images from noise with the model's own number of steps."""

    costs: ModelCosts
    quality: float | None = None
    quality_spread: float = 0.0
    reuse_quality: float = 1.0
    deviation: float = 0.0
    reuse_deviation: float = 0.0
    thinning: tuple[ThinningOption, ...] = ()

    @property
    def name(self) -> str:
        return self.costs.model


@dataclass(frozen=True)
class SimulatedDevices:
    """`count` equal devices. `speed` 2 takes half the time, and changes on its own. `models` they can hold (all if
    empty), `resident` first."""

    count: int
    resident: str
    speed: float = 1.0
    kind: str = ""
    models: tuple[str, ...] = ()
    max_batch: int = 1_000
    speed_changes: SpeedCourse = STEADY


@dataclass(frozen=True)
class Delays:
    """Seconds of everything but queueing and generation: journal commits (`accept`, `attempt`, `commit`, `end`),
    choosing the start (`route`), messages to a worker and back (`execute`, `result`), the discriminator (`score`),
    the answer to the client (`answer`)."""

    accept: Cost = NOTHING
    route: Cost = NOTHING
    attempt: Cost = NOTHING
    execute: Cost = NOTHING
    result: Cost = NOTHING
    score: Cost = NOTHING
    commit: Cost = NOTHING
    end: Cost = NOTHING
    answer: Cost = NOTHING


@dataclass(frozen=True)
class Outage:
    """A worker's process dies at `at_s` and another takes its name `for_s` later; the frontdoor notices after
    `noticed_s`."""

    worker_id: str
    at_s: float
    for_s: float
    noticed_s: float = 1.0


@dataclass(frozen=True)
class Scenario:
    """A scenario. The cascade's confidences are drawn from `deferral`, the true f(t); the policy has an estimate.
    `confidence_correlation` (0..1) is that of the normal scores of a light image's quality and confidence: at 1
    confidence gives the quality exactly, at 0 it gives no information.

    `closed_loop`: number of requests that run at any time, each arriving when another ends; 0: arrivals of the
    workload. `answers_late`: generate requests even after their SLO (the servers of the papers); otherwise the SLO
    is the deadline, as in the suite. `control_period_s` is the time between two plans. `cascade`: models in order,
    if no plan has shares for a cascade. `even_split`: send a request to a random worker of its model instead of by
    load (DiffServe's load balancer), for workers that have queues. `quotas` of tenants, by name. `processors`: that
    all devices share, 0 if each has its own. `confidences`: of light images from noise, by prompt and seed, where they
    are known. `store_factor`: loads of models from the remote store take this multiple of their time, and each worker
    has only its first model on its disk at the start; 1: all models are on all disks. `reports_tiers`:
    whether workers report which tier has a model; `reports_loras`: whether they report their LoRAs, which plans place.
    """

    name: str
    models: tuple[SimulatedModel, ...]
    devices: tuple[SimulatedDevices, ...]
    policy: ServingPolicy
    device_settings: DeviceSettings = field(default_factory=DeviceSettings)
    dataplane: DataplaneSettings = field(default_factory=DataplaneSettings)
    delays: Delays = Delays()
    cache: CacheSettings = field(default_factory=CacheSettings)
    deferral: DeferralCurve = field(default_factory=DeferralCurve)
    confidence_correlation: float = 1.0
    control_period_s: float = 5.0
    answers_late: bool = False
    closed_loop: int = 0
    even_split: bool = False
    outages: tuple[Outage, ...] = ()
    default_model: str = ""
    cascade: tuple[str, ...] = ()
    quotas: tuple[tuple[str, TenantQuota], ...] = ()
    pixels: int = 1
    adapters: AdapterCosts = NO_ADAPTER_COSTS
    processors: int = 0
    confidences: Mapping[tuple[str, int], float] = field(default_factory=dict)
    store_factor: float = 1.0
    reports_tiers: bool = True
    reports_loras: bool = True

    def __post_init__(self) -> None:
        known = {model.name for model in self.models}
        if len(known) < len(self.models):
            raise InvalidArgument.of("models", "must have names of their own")
        if not self.devices:
            raise InvalidArgument.of("devices", "must be at least one")
        if not 0.0 <= self.confidence_correlation <= 1.0:
            raise InvalidArgument.of("confidence_correlation", f"must be 0 to 1, got {self.confidence_correlation:g}")
        for devices in self.devices:
            if strangers := {devices.resident, *devices.models} - known:
                raise InvalidArgument.of("devices", f"must name models of the scenario, got {sorted(strangers)}")
        if self.default_model and self.default_model not in known:
            raise InvalidArgument.of("default_model", f"must be one of {sorted(known)}, got {self.default_model}")

    @property
    def device_count(self) -> int:
        return sum(devices.count for devices in self.devices)

    @property
    def thins(self) -> bool:
        """Return whether steps may be skipped, so that devices report each step."""
        return self.dataplane.thinning is not ThinningMode.OFF and any(model.thinning for model in self.models)

    def model(self, name: str) -> SimulatedModel:
        """KeyError for a stranger."""
        return next(model for model in self.models if model.name == name)
