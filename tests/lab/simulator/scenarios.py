"""Build small scenarios with results that can be computed by hand."""

from collections.abc import Sequence
from random import Random

from lab.emulation.costs import from_latencies
from lab.emulation.jobs import DeviceSettings
from lab.planners.registry import POLICIES
from lab.runs import RequestRecord
from lab.simulator import Scenario, Simulation
from lab.simulator.scenario import SimulatedDevices, SimulatedModel
from lab.workloads import Arrival, Workload
from pentimento.dataplane import DataplaneSettings
from pentimento.policies.plan.inputs import hold_resident
from pentimento.policies.plan.registry import ServingPolicy
from pentimento.policies.plan.settings import ServingSettings
from pentimento.profiles.costs import NOTHING, steady

TURBO = {1: 0.1, 2: 0.15, 4: 0.22, 8: 0.41}
SD15 = {1: 1.78, 2: 2.16, 4: 3.68, 8: 6.79}
RESIDENT = ServingPolicy("resident", hold_resident, plans_batches=False, moves_models=False)
REQUESTS = DeviceSettings(steps=False, credit_batches=1)
MODELS = (
    SimulatedModel(from_latencies("turbo", 1, TURBO), quality=0.8, quality_spread=0.4),
    SimulatedModel(from_latencies("sd15", 50, SD15), quality=0.9),
)


def one_model(
    seconds: dict[int, float], count: int = 1, steps: int = 10, load_s: float = 0.0, **changes: object
) -> Scenario:
    """Return devices that all hold the model `m`."""
    load = steady(load_s) if load_s else NOTHING
    defaults: dict[str, object] = {
        "name": "one",
        "models": (SimulatedModel(from_latencies("m", steps, seconds, load=load)),),
        "devices": (SimulatedDevices(count, "m"),),
        "policy": RESIDENT,
        "default_model": "m",
        "answers_late": True,
        "control_period_s": 1_000.0,
        "dataplane": DataplaneSettings(queue_limit=1_000_000),
    }
    return Scenario(**(defaults | changes))  # type: ignore[arg-type]


def cascade(policy: str, devices: int = 16, rate: float = 10.0, load_s: float = 0.0, **changes: object) -> Scenario:
    settings = ServingSettings(
        heavy="sd15", light="turbo", slo_s=5.0, expected_per_s=rate, peak_per_s=rate, batch_sizes=(1, 2, 4, 8)
    )
    models = tuple(
        SimulatedModel(from_latencies(name, steps, table, load=steady(load_s)), quality=0.8)
        for name, steps, table in (("turbo", 1, TURBO), ("sd15", 50, SD15))
    )
    defaults: dict[str, object] = {
        "name": policy,
        "models": models if load_s else MODELS,
        "devices": (SimulatedDevices(devices, "sd15"),),
        "policy": POLICIES[policy](settings),
        "device_settings": REQUESTS,
        "default_model": "sd15",
        "dataplane": DataplaneSettings(queue_limit=1_000_000),
    }
    return Scenario(**(defaults | changes))  # type: ignore[arg-type]


def arrivals(times: Sequence[float], steps: int = 10, deadline_s: float = 5.0, model: str = "") -> Workload:
    return Workload(
        "given",
        tuple(
            Arrival(at_s, "default", "", "standard", deadline_s, steps, index, model)
            for index, at_s in enumerate(times)
        ),
        {},
    )


def poisson(rate: float, count: int, steps: int = 50, deadline_s: float = 5.0, seed: int = 0) -> Workload:
    source, now, times = Random(seed), 0.0, list[float]()
    for _ in range(count):
        now += source.expovariate(rate)
        times.append(now)
    return arrivals(times, steps, deadline_s)


def run(scenario: Scenario, workload: Workload, seed: int = 1) -> list[RequestRecord]:
    """Return the records in the order of arrival."""
    records = Simulation(scenario, workload, Random(seed)).run()
    return sorted(records, key=lambda record: int(record.request_id[1:]))


def share(records: Sequence[RequestRecord], model: str) -> float:
    answered = [record for record in records if record.outcome.answered]
    return sum(record.model == model for record in answered) / len(answered)
