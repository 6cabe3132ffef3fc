"""Read scenario files, the input of `pentimento simulate`. `scenarios/README.md` lists every field.

fleet = "fleets/cascade-16.toml"
policies = ["diffserve", "static-cascade"]
[workload]
kind = "poisson"
rate = 12.0
duration_s = 600.0
deadline_s = 5.0
[policy]
light = "sd-turbo"
heavy = "sd15"
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from lab.emulation.adapter_costs import adapter_costs
from lab.emulation.costs import costs_of
from lab.emulation.fleet_file import EmulatedFleet, largest_batch, read_fleet
from lab.emulation.fleet_settings import fleet_settings
from lab.emulation.jobs import DeviceSettings
from lab.files.thresholds import read_thresholds
from lab.files.toml_document import TomlTable, read_toml
from lab.planners.registry import POLICIES
from lab.simulator.cache import CacheSettings
from lab.simulator.scenario import Delays, Outage, Scenario, SimulatedDevices, SimulatedModel
from lab.simulator.tenant_table import read_quotas
from lab.simulator.workload_table import existing, read_workload
from lab.workloads import Workload
from pentimento.dataplane import DataplaneSettings
from pentimento.domain.errors import InvalidArgument
from pentimento.policies.cache_selection import SelectionRules
from pentimento.policies.eviction_rules import EVICTION_NAMES
from pentimento.policies.plan.registry import ServingPolicy
from pentimento.policies.plan.settings import DeferralCurve, ServingSettings
from pentimento.profiles.costs import steady


@dataclass(frozen=True)
class ScenarioFile:
    """One scenario for each policy, all over the same workload. Requests of the first `warm_up_s` seconds are played
    and not reported."""

    name: str
    seed: int
    warm_up_s: float
    scenarios: tuple[Scenario, ...]
    workload: Workload
    provenance: dict[str, object]


def read_scenario(
    path: Path, policies: Sequence[str] = (), seed: int | None = None, eviction: str | None = None
) -> ScenarioFile:
    """NotFound without the file; InvalidArgument that names file, line, field and limit. `policies` and `seed` replace
    those of the file."""
    table = read_toml(path)
    fleet_path = existing(table, "fleet")
    assert fleet_path is not None
    fleet = read_fleet(fleet_path)
    seed_of_file = table.whole("seed", fleet.seed)
    chosen = seed if seed is not None else seed_of_file
    if chosen < 0:
        raise InvalidArgument.of("--seed", f"must be at least 0, got {chosen}")
    settings = _serving_settings(table, fleet)
    base = _base(table, fleet)
    if eviction is not None:
        base = replace(base, cache=replace(base.cache, eviction=eviction))
    of_file = table.texts("policies", ())
    named = tuple(policies) or of_file
    if strangers := [name for name in named if name not in POLICIES]:
        message = f"must be some of {', '.join(POLICIES)}, got {', '.join(map(repr, strangers))}"
        raise InvalidArgument.of("--policy", message) if policies else table.error("policies", message)
    scenarios = tuple(replace(base, name=name, policy=_policy(table, name, settings)) for name in named)
    if not scenarios:
        raise table.error("policies", f"must be at least one of {', '.join(POLICIES)}")
    asked = table.table("workload")
    if asked is None:
        raise table.error("workload", "must be given: a table")
    file = ScenarioFile(
        name=table.text("name", path.stem),
        seed=chosen,
        warm_up_s=table.number("warm_up_s", 0.0),
        scenarios=tuple(_as_decided(scenario) for scenario in scenarios),
        workload=read_workload(asked, np.random.default_rng(chosen)),
        provenance={"kind": "simulated", "scenario": path.name, "fleet": fleet_path.name, "seed": chosen},
    )
    table.close()
    return file


def _as_decided(scenario: Scenario) -> Scenario:
    """Return the scenario with the fleet's own threshold only where the policy plans none."""
    if not scenario.policy.moves_models:
        return scenario
    return replace(scenario, dataplane=replace(scenario.dataplane, confidence_threshold=0.0))


def _base(table: TomlTable, fleet: EmulatedFleet) -> Scenario:
    """The scenario without its policy."""
    devices = table.table("engine") or TomlTable({}, (), table.file, {})
    cascade = table.texts("cascade", fleet.cascade)
    _check_models(table, "cascade", cascade, fleet)
    return Scenario(
        name="",
        models=_models(fleet),
        devices=_devices(fleet),
        policy=POLICIES["resident"](ServingSettings(fleet.default_model)),
        device_settings=DeviceSettings(
            steps=fleet.step_batching,
            preempt=fleet.preempt,
            credit_batches=devices.whole("credit_batches", 0 if fleet.step_batching else 1, maximum=16) or None,
            aging_limit_s=devices.number("aging_limit_s", 30.0),
        ),
        dataplane=_dataplane(table.table("dataplane"), fleet),
        delays=_delays(table.table("delays"), fleet),
        adapters=adapter_costs(table.table("adapters")),
        cache=_cache(table.table("cache")),
        deferral=DeferralCurve(*(tuple(values) for values in zip(*fleet.deferral, strict=True))),
        control_period_s=table.number("control_period_s", 5.0, minimum=0.01),
        closed_loop=table.whole("closed_loop", 0),
        answers_late=table.flag("answers_late", False),
        outages=tuple(_outage(entry, fleet) for entry in table.tables("outages")),
        default_model=fleet.default_model,
        cascade=cascade,
        quotas=read_quotas(table),
    )


def _models(fleet: EmulatedFleet) -> tuple[SimulatedModel, ...]:
    return tuple(
        SimulatedModel(
            costs_of(model),
            model.quality,
            model.quality_spread,
            model.reuse_quality,
        )
        for model in fleet.models
    )


def _devices(fleet: EmulatedFleet) -> tuple[SimulatedDevices, ...]:
    return tuple(
        SimulatedDevices(
            count=devices.count,
            resident=devices.models[0],
            speed=devices.speed,
            speed_changes=devices.speed_changes,
            kind=devices.name,
            models=devices.models,
            max_batch=min(largest_batch(fleet.model(name), devices) for name in devices.models),
        )
        for devices in fleet.devices
    )


def _policy(table: TomlTable, name: str, settings: ServingSettings) -> ServingPolicy:
    try:
        POLICIES[name].check(settings)
    except InvalidArgument as error:
        needed = error.violations[0]
        field = {"small_models": "small"}.get(needed.field, needed.field)
        raise _policy_table(table).error(field, needed.description) from None
    return POLICIES[name](settings)


def _policy_table(table: TomlTable) -> TomlTable:
    return table.table("policy") or TomlTable({}, ("policy",), table.file, {})


def _serving_settings(table: TomlTable, fleet: EmulatedFleet) -> ServingSettings:
    asked = _policy_table(table)
    default = fleet_settings(fleet)
    heavy, light = asked.text("heavy", default.heavy), asked.text("light", default.light)
    small = asked.texts("small", ())
    _check_models(asked, "heavy", (heavy,), fleet)
    _check_models(asked, "light", (light,) if light else (), fleet)
    _check_models(asked, "small", small, fleet)
    return replace(
        default,
        heavy=heavy,
        light=light,
        small=small,
        slo_s=asked.number("slo_s", minimum=0.001) if "slo_s" in asked.fields else default.slo_s,
        expected_per_s=asked.number("expected_per_s", 0.0),
        peak_per_s=asked.number("peak_per_s", 0.0),
        fixed_threshold=asked.number("fixed_threshold", default.fixed_threshold, maximum=1.0),
        overprovision=asked.number("overprovision", default.overprovision, minimum=0.1, maximum=10.0),
        demand_weight=asked.number("demand_weight", default.demand_weight, minimum=0.001, maximum=1.0),
        batch_sizes=_batch_sizes(asked, default.batch_sizes),
        step_count=fleet.model(heavy).steps,
        hysteresis=asked.number("hysteresis", default.hysteresis, maximum=0.9),
        run_price=asked.number("run_price", default.run_price, maximum=1.0),
    )


def _batch_sizes(table: TomlTable, default: Sequence[int]) -> tuple[int, ...]:
    sizes = table.numbers("batch_sizes", default, minimum=1.0)
    if not sizes or any(size != int(size) for size in sizes):
        raise table.error("batch_sizes", f"must be whole numbers, one or more, got {list(sizes)}")
    return tuple(int(size) for size in sizes)


def _check_models(table: TomlTable, field: str, names: Sequence[str], fleet: EmulatedFleet) -> None:
    known = [model.name for model in fleet.models]
    if strangers := set(names) - set(known):
        raise table.error(
            field, f"must be models of the fleet ({', '.join(known)}), got {', '.join(sorted(strangers))}"
        )


def _dataplane(table: TomlTable | None, fleet: EmulatedFleet) -> DataplaneSettings:
    default = DataplaneSettings(confidence_threshold=fleet.confidence_threshold)
    if table is None:
        return default
    return DataplaneSettings(
        queue_limit=table.whole("queue_limit", default.queue_limit, minimum=1),
        drop_late=table.flag("drop_late", default.drop_late),
        confidence_threshold=table.number("confidence_threshold", fleet.confidence_threshold, maximum=1.0),
        fall_back=table.flag("fall_back", default.fall_back),
    )


def _delays(table: TomlTable | None, fleet: EmulatedFleet) -> Delays:
    """`NAME_s` for each; `variation` is that of all."""
    delays = Delays()
    if fleet.discriminator is not None:
        delays = replace(delays, score=fleet.discriminator.score)
    if table is None:
        return delays
    variation = table.number("variation", 0.0)
    given = {
        field.name: steady(table.number(f"{field.name}_s"), variation)
        for field in fields(Delays)
        if f"{field.name}_s" in table.fields
    }
    return replace(delays, **given)


def _cache(table: TomlTable | None) -> CacheSettings:
    if table is None:
        return CacheSettings()
    default = CacheSettings()
    rules = SelectionRules(
        latents=read_thresholds(table.table("latents"), default.rules.latents),
        images=read_thresholds(table.table("images"), default.rules.images),
        renoised_share=table.number("renoised_share", default.rules.renoised_share, maximum=1.0),
        retaken_share=table.number("retaken_share", default.rules.retaken_share, maximum=1.0),
    )
    eviction = table.text("eviction", default.eviction)
    if eviction and eviction not in EVICTION_NAMES:
        raise table.error("eviction", f"must be one of {', '.join(EVICTION_NAMES)}, got {eviction!r}")
    return CacheSettings(
        capacity=table.whole("capacity", default.capacity, minimum=1),
        rules=rules,
        shared=table.flag("shared", default.shared),
        warm_count=table.whole("warm_count", default.warm_count),
        retrieval_similarity=table.number("retrieval_similarity", default.retrieval_similarity, maximum=1.0),
        max_depth=table.whole("max_depth", default.max_depth, minimum=1),
        eviction=eviction,
    )


def _outage(table: TomlTable, fleet: EmulatedFleet) -> Outage:
    worker = table.text("worker")
    known = [name for devices in fleet.devices for name in devices.workers()]
    if worker not in known:
        raise table.error("worker", f"must be a worker of the fleet ({known[0]} to {known[-1]}), got {worker!r}")
    return Outage(worker, table.number("at_s"), table.number("for_s"), table.number("noticed_s", 1.0))
