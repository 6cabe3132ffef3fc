"""Emulated workers that hold one of many models at a time: their fleet, arrivals by popularity, and the baselines.

An image takes half a second alone, less in a batch of up to four. The baselines `lru-models` and `fixed-shares` are
policies of the lab, which the suite finds as another distribution's plug-ins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from lab.emulation.costs import from_latencies
from lab.runs import RequestRecord
from lab.simulator import Scenario, Simulation
from lab.simulator.scenario import SimulatedDevices, SimulatedModel
from lab.workloads import Workload
from pentimento.policies.plan.registry import ServingPolicy
from pentimento.profiles.costs import steady

BATCH = 4
LATENCY_S = {1: 0.5, 2: 0.8, 4: 1.4}
PLUGIN = """[pentimento.policies]
lru-models = lab.planners.many_models:lru_models
fixed-shares = lab.planners.many_models:fixed_shares
"""
# Replicas report three times in a lease, and these policies decide after every second report.
PLAN_INTERVAL_S = 0.8
SETTINGS = f"[controller]\nlease_s = {1.5 * PLAN_INTERVAL_S}\n"


@dataclass(frozen=True)
class SwitchingFleet:
    """Describe a fleet by the names and load seconds of its models. With `swap_s` a worker reads a model while it
    generates, and is then empty for `swap_s`. LoRAs, if any, take `lora_load_s`, and a worker keeps `lora_count`."""

    models: Sequence[tuple[str, float]]
    workers: int
    swap_s: float | None = None
    loras: Sequence[str] = ()
    lora_load_s: float = 0.0
    lora_count: int = 8

    @property
    def images_per_s(self) -> float:
        """Return the images a second that its workers generate one at a time, without loading."""
        return self.workers / LATENCY_S[1]

    def text(self) -> str:
        """Return the fleet's file. Each worker begins with another model."""
        latency = ", ".join(f"{size} = {seconds}" for size, seconds in LATENCY_S.items())
        swap = "" if self.swap_s is None else f"swap_s = {self.swap_s}\n"
        models = [
            f'[[models]]\nname = "{name}"\nsteps = 10\nguidance_scale = 1.0\nquality = 0.5\n'
            f"latency_s = {{ {latency} }}\nload_s = {load_s:.2f}\n{swap}"
            for name, load_s in self.models
        ]
        names = [name for name, _ in self.models]
        groups = [
            f'[[devices]]\nname = "w{number}"\ncount = 1\nmax_batch = {BATCH}\n'
            f"models = {_listed([*names[number:], *names[:number]])}\n"
            for number in range(self.workers)
        ]
        adapters = f"[adapters]\nloras = {_listed(self.loras)}\nresident_count = {self.lora_count}\n"
        adapters += f"load_s = {self.lora_load_s}\nlatest_start_fraction = 0.2\n"
        return "\n".join(['seed = 1\nbatching = "steps"\n', *models, *groups, adapters if self.loras else ""])


def _listed(names: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def write_files(folder: Path, fleet: SwitchingFleet) -> None:
    """Write the fleet, the controller's settings, and a distribution with the baselines."""
    (folder / "fleet.toml").write_text(fleet.text())
    (folder / "settings.toml").write_text(SETTINGS)
    plugin = folder / "switching_baselines-0.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: switching-baselines\nVersion: 0\n")
    (plugin / "entry_points.txt").write_text(PLUGIN)


def flags_of(folder: Path, policy: str) -> tuple[str, ...]:
    """Return the flags of `pentimento up` for these files and a policy."""
    return ("--policy", policy, "--config", str(folder / "settings.toml"))


def simulated(fleet: SwitchingFleet, policy: ServingPolicy, workload: Workload) -> list[RequestRecord]:
    """Return the requests of the fleet in virtual time, without the seconds of processes and messages."""
    names = [name for name, _ in fleet.models]
    swap = None if fleet.swap_s is None else steady(fleet.swap_s)
    models = tuple(
        SimulatedModel(from_latencies(name, 10, LATENCY_S, load=steady(load_s), swap=swap))
        for name, load_s in fleet.models
    )
    devices = tuple(
        SimulatedDevices(1, names[number], kind=f"w{number}", models=tuple(names), max_batch=BATCH)
        for number in range(fleet.workers)
    )
    scenario = Scenario("switching", models, devices, policy, default_model=names[0], control_period_s=PLAN_INTERVAL_S)
    return Simulation(scenario, workload, Random(1)).run()
