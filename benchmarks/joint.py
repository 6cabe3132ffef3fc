"""How much load the joint policy carries, and how much the best policy of a single paper, on the same devices.

    python -m benchmarks.joint

Simulated, by the code that serves: dataplane, policies, selector and eviction are the live ones. Sixteen MI210s hold
MoDM's models (SD 3.5 large, SDXL, SANA) with the seconds of its artefact, and play a production mix: the Azure shape
that DiffServe plays, in the time that these models take; prompts of a made-up log with DiffusionDB's locality of which
caches know the first; LoRAs as MLoRA counted them; ControlNets as popular as Katz has them, on a fifth of the requests.
Every system has a cache of one size, the same selector and costs of adapters and loads, and plans every fifteen
seconds. The cascade is SANA before the large model, with the deferral curve of DiffServe's artefact for SDXS.

A load is the rate at the trace's peak. It is carried where at most 5 % of the requests are late, dropped, rejected or
failed, and the mean quality of the answered ones is at least 0.95 of the heavy model's (the alpha of both papers about
caches). For each system and trace the largest load that is carried is searched for on a grid; five traces, the same for
all. A light picture is worth what `tiny-light` keeps of `tiny-heavy`'s CLIPScore, the easiest one all of it; a hit is
worth 0.95, whoever refines or resumes it, as selectors are profiled for.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from benchmarks.paper_constants import (
    AZURE_SEGMENT_S,
    AZURE_SHAPE,
    CASCADES,
    DISCRIMINATOR_S,
    MI210_SECONDS,
)
from benchmarks.paper_systems import IMAGE_RULES, curve
from benchmarks.report import Figure, at_least, informative, measured, parse_options, publish
from benchmarks.statistics import ratio_of_sums
from pentimento.dataplane import DataplaneSettings
from pentimento.devices.adapter_costs import AdapterCosts
from pentimento.devices.profile import steady
from pentimento.emulation.costs import from_latencies
from pentimento.policies.cache_selection import SelectionRules
from pentimento.policies.serving.policy import SERVING_POLICIES, ServingPolicy
from pentimento.policies.serving.settings import ModelQuality, ServingSettings
from pentimento.reports.figures import mean_quality
from pentimento.simulator import Scenario, Simulation
from pentimento.simulator.cache import CacheSettings
from pentimento.simulator.scenario import Delays, SimulatedDevices, SimulatedModel
from pentimento.simulator.synthetic_log import synthetic_log
from pentimento.workloads import Content, Segment, SloClass, Workload
from pentimento.workloads.production import MLORA, production_mix
from pentimento.workloads.times import segment_times

# Its deferral curve alone.
CASCADE = CASCADES[2]
OURS = "joint"
# A control: ours with plans that also say how much of the cache's tables hits use, which caches follow.
PLANS_REUSE = "joint planning reuse"
# A system of each paper about what is planned here, and the baselines of those papers.
PAPERS = (
    "vanilla",
    "clipper-heavy",
    "proteus",
    "static-cascade",
    "diffserve",
    "diffserve-milp",
    "nirvana-only",
    "retrieval-only",
    "modm-only",
)
MOST_VIOLATIONS, LEAST_QUALITY = 0.05, 0.95
# Requests a second at the peak, six per cent from one to the next; the search begins at about what a system carries.
LOADS = tuple(0.05 * 1.06**number for number in range(90))
GUESSES = {"nirvana-only": 0.25, "modm-only": 1.2, PLANS_REUSE: 1.6, OURS: 1.6}
GUESS = 0.2
DEVICES, PERIOD_S, SWING, STEPS = 16, 15.0, 8.0, 50
# Four times the large model's time: MoDM's looser SLO; its tighter one leaves no time for a cascade.
SLO_S = 4 * MI210_SECONDS["large"]
# DiffServe's are of two runs of its heavy model; these of one, so that a search takes minutes.
SEGMENT_S = AZURE_SEGMENT_S * 7.5
WARM_COUNT, CAPACITY = 3_000, 10_000
# zoo_quality: the light model's share of the heavy one's CLIPScore; the one between lies between. The spread is twice
# what is missing: the easiest picture keeps all of it.
QUALITY = {"large": 1.0, "sdxl": 0.92, "sana": 0.84}
HIT_QUALITY = 0.95
MIX = replace(MLORA, controlnet_counts=(0.8, 0.2))
# Seconds: Katz's on an H800 (scenarios/paces/sdxl-h800.toml), and loads of scenarios/fleets/modm-16.toml.
ADAPTERS = AdapterCosts(8, steady(0.4, 0.2), steady(0.12), steady(0.003), 0.2)
LOAD_S = {"large": 20.0, "sdxl": 10.0, "sana": 5.0}


@dataclass(frozen=True)
class LoadRun:
    """How a system fared with a load; violations are a share of the requests, quality of the heavy model's."""

    system: str
    trace: int
    peak_per_s: float
    violations: float
    quality: float

    @property
    def carried(self) -> bool:
        """Return whether SLO and quality were kept."""
        return self.violations <= MOST_VIOLATIONS and self.quality >= LEAST_QUALITY

    def row(self) -> list[object]:
        """Return it as JSON values."""
        return [self.system, self.trace, round(self.peak_per_s, 4), round(self.violations, 5), round(self.quality, 5)]


def main() -> int:
    options = parse_options("joint", __doc__, add_options)
    systems = options.rest["systems"] or (*PAPERS, PLANS_REUSE, OURS)
    traces = range(1, 2 if options.quick else 6)
    segment_s = SEGMENT_S / 4 if options.quick else SEGMENT_S
    runs: list[LoadRun] = []
    most: dict[str, list[float]] = {system: [] for system in systems}
    for trace in traces:
        for system in systems:
            guess = nearest(float(np.mean(most[system])) if most[system] else GUESSES.get(system, GUESS))
            own = search(lambda peak, s=system, t=trace: play(s, t, peak, segment_s), guess)  # type: ignore[misc]
            most[system].append(max((run.peak_per_s for run in own if run.carried), default=0.0))
            runs += own
            print(system, trace, [run.row()[2:] for run in own], flush=True)
    notes = {
        "runs: system, trace, peak a second, violations, quality": [run.row() for run in runs],
        "slo_s": SLO_S,
        "segment_s": segment_s,
        "simulated": True,
    }
    return publish(options, figures_of(most), notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--systems", nargs="+", choices=(*SERVING_POLICIES, PLANS_REUSE), help="these alone")


def figures_of(most: dict[str, list[float]]) -> list[Figure]:
    """Return ours ÷ the best of the others, trace by trace, and the load of each system."""
    figures = []
    others = [system for system in most if system not in (OURS, PLANS_REUSE)]
    if OURS in most and others:
        mean = {system: float(np.mean(most[system])) for system in others}
        best = max(others, key=lambda system: mean[system])
        pairs = list(zip(most[OURS], most[best], strict=True))
        if mean[best] > 0:
            figures.append(measured(f"load of {OURS} ÷ of {best}, the best other", pairs, ratio_of_sums, at_least(1.3)))
        strongest = [max(most[system][index] for system in others) for index in range(len(most[OURS]))]
        if min(strongest) > 0:
            pairs = list(zip(most[OURS], strongest, strict=True))
            figures.append(measured("the same, ÷ the best other of each trace", pairs, ratio_of_sums, at_least(1.3)))
    if OURS in most and PLANS_REUSE in most and np.mean(most[OURS]) > 0:
        pairs = list(zip(most[PLANS_REUSE], most[OURS], strict=True))
        figures.append(measured(f"load of {PLANS_REUSE} ÷ of {OURS}", pairs, ratio_of_sums, at_least(1.0)))
    for system, loads in most.items():
        figures.append(measured(f"{system}: load at the peak", loads, lambda x: float(np.mean(x)), informative("1/s")))
    return figures


def nearest(load: float) -> int:
    """Return the number of the grid's load."""
    return min(range(len(LOADS)), key=lambda number: abs(LOADS[number] - load))


def search(run: Callable[[float], LoadRun], guess: int) -> list[LoadRun]:
    """Return the runs of a search for the largest load of the grid that is carried while the next one is not."""
    found: dict[int, LoadRun] = {}

    def carried(number: int) -> bool:
        found.setdefault(number, run(LOADS[number])) if number not in found else None
        return found[number].carried

    low, high, step = guess, guess, 1
    while low > 0 and not carried(low):
        low, high, step = max(low - step, 0), low, step * 2
    if low == high:
        high = min(low + 1, len(LOADS) - 1)
        while high < len(LOADS) - 1 and carried(high):
            low, high, step = high, min(high + step, len(LOADS) - 1), step * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if carried(middle) else (low, middle)
    carried(low)
    return list(found.values())


def play(system: str, trace: int, peak: float, segment_s: float) -> LoadRun:
    """Play a trace on a system; nothing is given up on, whatever comes."""
    records = Simulation(scenario_of(system, peak), workload_of(trace, peak, segment_s), Random(trace)).run()
    violated = sum(record.outcome.violation for record in records) / len(records)
    return LoadRun(system, trace, peak, violated, mean_quality(records))


def workload_of(trace: int, peak: float, segment_s: float) -> Workload:
    """Return the production mix at times whose rate follows the Azure shape up to `peak`."""
    low = peak / SWING
    times = segment_times(
        tuple(Segment(segment_s, low + share * (peak - low)) for share in AZURE_SHAPE), np.random.default_rng(trace)
    )
    count = WARM_COUNT + len(times)
    content = Content(
        prompts=("",) * count,
        embeddings=synthetic_log(count, np.random.default_rng(trace)),
        slo_classes=(SloClass("standard", SLO_S),),
        steps=STEPS,
        first_prompt=WARM_COUNT,
        sources=("synthetic",),
    )
    mixed = production_mix(times, np.random.default_rng(trace), content, MIX)
    # Which model paints is the systems' decision.
    return replace(mixed, arrivals=tuple(replace(arrival, model="") for arrival in mixed.arrivals))


def settings_of(peak: float) -> ServingSettings:
    """Return what a system knows that has been running at the low load, static ones provisioned for the peak."""
    return ServingSettings(
        heavy="large",
        light="sana",
        small=("sdxl", "sana"),
        slo_s=SLO_S,
        deferral=curve(CASCADE),
        discriminator_s=DISCRIMINATOR_S,
        expected_per_s=peak / SWING,
        peak_per_s=peak,
        fixed_threshold=CASCADE.static.threshold,
        batch_sizes=(1,),
        step_count=STEPS,
        qualities=tuple(
            ModelQuality(name, quality, spread_of(quality), HIT_QUALITY / quality) for name, quality in QUALITY.items()
        ),
    )


def policy_of(system: str, peak: float) -> ServingPolicy:
    """Return the policy of a system; the control is ours with another setting."""
    settings = replace(settings_of(peak), plans_reuse=system == PLANS_REUSE)
    return SERVING_POLICIES[OURS if system == PLANS_REUSE else system](settings)


def spread_of(quality: float) -> float:
    """Return by how much the easiest picture is better than the hardest: it is as good as the large model's."""
    return 2 * (1.0 - quality)


def scenario_of(system: str, peak: float) -> Scenario:
    """Return the fleet under a system."""
    rules = SelectionRules() if system == "nirvana-only" else replace(SelectionRules(), images=IMAGE_RULES.images)
    # NIRVANA keeps five latents of a prompt.
    capacity = 5 * CAPACITY if system == "nirvana-only" else CAPACITY
    return Scenario(
        name=system,
        models=tuple(_model(name) for name in MI210_SECONDS),
        devices=(SimulatedDevices(DEVICES, "large", max_batch=1),),
        policy=policy_of(system, peak),
        dataplane=DataplaneSettings(queue_limit=100_000),
        delays=Delays(score=steady(DISCRIMINATOR_S)),
        cache=CacheSettings(capacity, rules, shared=True, warm_count=WARM_COUNT),
        deferral=curve(CASCADE),
        control_period_s=PERIOD_S,
        default_model="large",
        adapters=ADAPTERS,
    )


def _model(name: str) -> SimulatedModel:
    costs = from_latencies(name, STEPS, {1: MI210_SECONDS[name]}, variation=0.02, load=steady(LOAD_S[name]))
    return SimulatedModel(costs, QUALITY[name], spread_of(QUALITY[name]), HIT_QUALITY / QUALITY[name])


if __name__ == "__main__":
    raise SystemExit(main())
