"""Compare the joint plan with and without reports of components: where models are, and the LoRAs of each worker.

The control plans with the load seconds of the profile, which are those from the disk, and places no LoRA.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from statistics import fmean, quantiles

from lab.emulation.adapter_costs import AdapterCosts
from lab.runs.figures import mean_quality
from lab.runs.measure import Figure, at_most, informative, measured
from lab.simulator import Scenario, Simulation
from lab.workloads import Workload
from lab.workloads.components import KINDS
from pentimento.profiles.costs import steady

# Loads from the remote store take this multiple of loads from the disk. A worker's disk has one model at the start.
STORE_FACTOR = 3.0
# A worker has memory for eight LoRAs. One loads in MLoRA's mean time (section 5.2), before the first step.
ADAPTERS = AdapterCosts(8, steady(KINDS["lora"].mean_load_s, 0.2), steady(0.12), steady(0.003))
CONTROL = "the profile's load seconds"
# Whether workers report the tiers of models, and their LoRAs.
SIDES: Mapping[str, tuple[bool, bool]] = {
    "tiers and LoRAs": (True, True),
    "tiers alone": (True, False),
    CONTROL: (False, False),
}


@dataclass(frozen=True)
class ComponentRun:
    """Hold the results of one trace on one side. Seconds are means of a request."""

    latency_s: float
    p99_s: float
    lora_wait_s: float
    model_load_s: float
    violations: float
    quality: float


def played(scenario: Scenario, workload: Workload, seed: int, side: str) -> ComponentRun:
    """Play a trace on the fleet."""
    tiers, loras = SIDES[side]
    changed = replace(scenario, adapters=ADAPTERS, store_factor=STORE_FACTOR, reports_tiers=tiers, reports_loras=loras)
    simulation = Simulation(changed, workload, Random(seed))
    records = simulation.run()
    latencies = [record.latency_s for record in records]
    return ComponentRun(
        fmean(latencies),
        quantiles(latencies, n=100)[-1],
        simulation.adapter_wait_s / len(records),
        simulation.model_load_s / len(records),
        sum(record.outcome.violation for record in records) / len(records),
        mean_quality(records),
    )


def component_figures(traces: Iterable[Callable[[str], ComponentRun]]) -> list[Figure]:
    """Return each side's results over the control's, and the results themselves. `traces` play a side each."""
    runs = [{side: trace(side) for side in SIDES} for trace in traces]
    figures = []
    for side in SIDES:
        if side == CONTROL:
            continue
        pairs = [(one[side], one[CONTROL]) for one in runs]
        for field, what in (("latency_s", "mean latency"), ("p99_s", "p99 latency"), ("lora_wait_s", "wait for LoRAs")):
            target = at_most(1.0) if (field, side) == ("latency_s", "tiers and LoRAs") else informative()
            figures.append(measured(f"{side}: {what} ÷ control", pairs, partial(_ratio, field), target))
    for side in SIDES:
        for field in ("latency_s", "lora_wait_s", "model_load_s", "violations", "quality"):
            what = field.removesuffix("_s")
            values = [getattr(one[side], field) for one in runs]
            figures.append(measured(f"{side}: {what}", values, fmean, informative("s" if what != field else "")))
    return figures


def _ratio(field: str, pairs: Sequence[tuple[ComponentRun, ComponentRun]]) -> float:
    return fmean(getattr(ours, field) for ours, _ in pairs) / fmean(getattr(control, field) for _, control in pairs)
