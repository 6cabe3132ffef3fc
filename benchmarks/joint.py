"""Compare the load that the joint policy carries with the best single paper's policy, on the same devices.

    python -m benchmarks.joint

Simulated by the serving code: dataplane, policies, selector and eviction are the live ones. Sixteen MI210s hold MoDM's
models (SD 3.5 large, SDXL, SANA) with its artefact's seconds, and serve a production mix: three load shapes, including
DiffServe's Azure shape; prompts of a synthetic log with DiffusionDB's locality, with caches that have seen its start;
LoRAs as MLoRA counted them; ControlNets with Katz's popularity, on a fifth of the requests. Every system has a cache of
one size, the same selector and costs of adapters and loads, and plans every fifteen seconds. The cascade is SANA before
the large model, with the deferral curve of DiffServe's artefact for SDXS.

A load is the rate at the trace's peak. It is carried if, in the mean of all traces, at most 5 % of the requests are
late, dropped, rejected or failed, and the mean quality of the answered ones is at least 0.95 of the heavy model's (the
alpha of both papers about caches). The search for the largest carried load runs on a grid; the result is interpolated
between the last carried load and the next.

Quality and confidence are drawn separately: confidence predicts quality with the AUROC that `router` measured, the
plan's profile assumes perfect prediction, and outcomes of deferrals correct the plan. Single light images and hits
differ from their means as `router` and `selector_profile` measured. A light image keeps 0.84 in the mean, as
`tiny-light` does of `tiny-heavy`'s CLIPScore; a hit keeps 0.95 under any model, which selectors are profiled for. Each
constant is varied by itself.

With --components: the joint plan with and without reports of components, on the production mix with drift at one load
(`suites.joint_components`).
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from random import Random

import numpy as np

from benchmarks.papers.constants import AZURE_SEGMENT_S, CASCADES, DISCRIMINATOR_S, MI210_SECONDS
from benchmarks.papers.systems import (
    AUROC,
    AUROC_BY_ENCODER,
    AUROC_DIFFSERVE,
    HIT_DEVIATION,
    HIT_MEAN,
    IMAGE_RULES,
    THREE,
    correlation_of,
    curve,
    own_deviation,
)
from benchmarks.suites.joint_components import STORE_FACTOR, ComponentRun, component_figures, played
from lab.emulation.adapter_costs import AdapterCosts
from lab.emulation.costs import from_latencies
from lab.planners.registry import POLICIES
from lab.runs.figures import mean_quality
from lab.runs.measure import Figure, Options, at_least, informative, measured, parse_options, publish
from lab.simulator import Scenario, Simulation
from lab.simulator.cache import CacheSettings
from lab.simulator.scenario import Delays, SimulatedDevices, SimulatedModel
from lab.simulator.synthetic_log import synthetic_log
from lab.workloads import Content, Segment, SloClass, Workload
from lab.workloads.production import MLORA, MLORA_DRIFTING, ProductionMix, production_mix
from lab.workloads.times import segment_times
from pentimento.dataplane import DataplaneSettings
from pentimento.policies.cache_selection import SelectionRules
from pentimento.policies.plan.settings import ModelQuality, ServingSettings
from pentimento.profiles.costs import steady

# only its deferral curve
CASCADE = CASCADES[2]
OURS = "joint"
# one system per paper about planning, and those papers' baselines
PAPERS = (
    "clipper-heavy",
    "proteus",
    "static-cascade",
    "diffserve",
    "nirvana-only",
    "retrieval-only",
    "modm",
)
MOST_VIOLATIONS, LEAST_QUALITY = 0.05, 0.95
# Requests per second at the peak, in steps of a tenth; the search begins near a system's usual load.
LOADS = tuple(0.05 * 1.1**number for number in range(60))
GUESSES = {"modm": 0.72, OURS: 1.3}
GUESS = 0.3
# The strongest paper runs on all traces; the others carry a third of its load, and run on one seed's traces.
RIVAL = "modm"
SEEDS, MOVED_SEEDS = 10, 4
DEVICES, PERIOD_S, SWING, STEPS = 16, 15.0, 8.0, 50
# Four times the large model's time: MoDM's looser SLO; its tighter one leaves no time for a cascade.
SLO_S = 4 * MI210_SECONDS["large"]
# DiffServe's last two runs of its heavy model; these last a third of one, since ten seeds of three shapes take minutes.
SEGMENT_S = AZURE_SEGMENT_S * 2.5
WARM_COUNT, CAPACITY = 3_000, 10_000
# zoo_quality: the light model's share of the heavy one's CLIPScore
LIGHT = 0.84
MIX = replace(MLORA, controlnet_counts=(0.8, 0.2))
DRIFTING, COMPONENTS_PEAK_PER_S = replace(MLORA_DRIFTING, controlnet_counts=(0.8, 0.2)), 1.0
# seconds: Katz's on an H800 (scenarios/paces/sdxl-h800.toml), and loads of scenarios/fleets/modm-16.toml
ADAPTERS = AdapterCosts(8, steady(0.4, 0.2), steady(0.12), steady(0.003), 0.2)
LOAD_S = {"large": 20.0, "sdxl": 10.0, "sana": 5.0}


@dataclass(frozen=True)
class Constants:
    """Assume how well confidence predicts quality, the quality of hits, and that of SDXL's images, which was not
    measured: by default halfway between the other two."""

    auroc: float = AUROC
    hit: float = 0.95
    middle: float = (1.0 + LIGHT) / 2.0

    @property
    def quality(self) -> Mapping[str, float]:
        """Return the mean quality of images from noise, by model."""
        return {"large": 1.0, "sdxl": self.middle, "sana": LIGHT}


MEASURED, UNINFORMED = "as measured", "AUROC 0.5"
CASES: Mapping[str, Constants] = {
    MEASURED: Constants(),
    UNINFORMED: Constants(auroc=0.5),
    f"AUROC {AUROC_DIFFSERVE:g}": Constants(auroc=AUROC_DIFFSERVE),
    f"AUROC {AUROC_BY_ENCODER:g}": Constants(auroc=AUROC_BY_ENCODER),
    f"hits keep {HIT_MEAN:g}": Constants(hit=HIT_MEAN),
    "hits keep 0.97": Constants(hit=0.97),
    f"SDXL {LIGHT:g}, as SANA": Constants(middle=LIGHT),
}


@dataclass(frozen=True)
class Trace:
    """Name a load shape, and the seed of all random draws."""

    shape: str
    seed: int


@dataclass(frozen=True)
class LoadRun:
    """Store a system's result under a load; violations are a share of the requests, quality of the heavy model's."""

    system: str
    trace: Trace
    peak_per_s: float
    violations: float
    quality: float

    def row(self) -> list[float]:
        """Return load, violations and quality as JSON values."""
        return [round(self.peak_per_s, 4), round(self.violations, 5), round(self.quality, 5)]


Points = list[list[float]]
"""Of one trace: load, violations and quality of each tried load, ascending."""


def main() -> int:
    options = parse_options("joint", __doc__, add_options)
    if options.rest["components"]:
        return components(options)
    cases = options.rest["cases"] or tuple(CASES)
    segment_s = SEGMENT_S / 4 if options.quick else options.rest["segment_s"]
    found: dict[str, dict[str, list[Points]]] = {}
    for case in cases:
        found[case] = {}
        for system in options.rest["systems"] or systems_of(case):
            traces = traces_of(case, system, 1 if options.quick else options.rest["seeds"])
            found[case][system] = loads_of(system, traces, segment_s, CASES[case])
            print(case, system, round(carried(found[case][system]), 3), means(found[case][system]), flush=True)
    return publish(options, figures_of(found), notes={"slo_s": SLO_S, "segment_s": segment_s, "simulated": True})


def components(options: Options) -> int:
    """Publish the comparison of the joint plan with itself."""
    segment_s = SEGMENT_S / 4 if options.quick else options.rest["segment_s"]
    seeds = range(1, 2 if options.quick else min(options.rest["seeds"], MOVED_SEEDS) + 1)
    traces = [Trace(shape, seed) for seed in seeds for shape in THREE]
    scenario = scenario_of(OURS, COMPONENTS_PEAK_PER_S)

    def play_side(trace: Trace, side: str) -> ComponentRun:
        workload = workload_of(trace, COMPONENTS_PEAK_PER_S, segment_s, DRIFTING)
        return played(scenario, workload, trace.seed, side)

    figures = component_figures(partial(play_side, trace) for trace in traces)
    return publish(options, figures, notes={"segment_s": segment_s, "store_factor": STORE_FACTOR, "simulated": True})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--components", action="store_true", help="only with and without reports of components")
    parser.add_argument("--systems", nargs="+", choices=tuple(POLICIES), help="only these")
    parser.add_argument("--segment-s", type=float, default=SEGMENT_S, help="seconds of a part of a shape")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of each shape")
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), help="only these")


def systems_of(case: str) -> tuple[str, ...]:
    """Return the compared systems."""
    return (*PAPERS, OURS) if case == MEASURED else (RIVAL, OURS)


def traces_of(case: str, system: str, seeds: int) -> list[Trace]:
    """Return all traces if the case has a target, else those of the first seeds."""
    if system not in (RIVAL, OURS):
        seeds = 1
    elif case not in (MEASURED, UNINFORMED):
        seeds = min(seeds, MOVED_SEEDS)
    return [Trace(shape, seed) for seed in range(1, seeds + 1) for shape in THREE]


def figures_of(found: Mapping[str, Mapping[str, Sequence[Points]]]) -> list[Figure]:
    """Return ours ÷ the best other in each case, also by shape, and the load of each system."""
    figures = []
    for case, systems in found.items():
        others = [system for system in systems if system != OURS]
        if OURS not in systems or not others:
            continue
        best = max(others, key=lambda system: carried(systems[system]))
        target = {MEASURED: at_least(1.3), UNINFORMED: at_least(1.0)}.get(case, informative())
        pairs = list(zip(systems[OURS], systems[best], strict=False))
        figures.append(measured(f"{case}: load of {OURS} ÷ of {best}", pairs, ratio, target))
        for number, shape in enumerate(THREE) if case in (MEASURED, UNINFORMED) else ():
            figures.append(measured(f"the same, {shape}", pairs[number :: len(THREE)], ratio, informative()))
    for case, systems in found.items():
        for system, traces in systems.items():
            figures.append(measured(f"{case}, {system}: load at the peak", traces, carried, informative("1/s")))
    return figures


def ratio(pairs: Sequence[tuple[Points, Points]]) -> float:
    """Return the load that the first traces of the pairs carry, over that of the second."""
    return carried([ours for ours, _ in pairs]) / carried([theirs for _, theirs in pairs])


def means(traces: Sequence[Points]) -> Points:
    """Return load, violations and quality in the mean of traces."""
    return [
        [round(float(np.mean(values)), 5) for values in zip(*points, strict=True)]
        for points in zip(*traces, strict=True)
    ]


def carried(traces: Sequence[Points]) -> float:
    """Return the load carried in the mean of the traces: where a line between the last carried load and the next meets
    the bounds. Below the first load, an idle fleet meets both bounds."""
    points = [(0.0, 1.0), *((load, margin(violations, quality)) for load, violations, quality in means(traces))]
    for (load, kept), (beyond, missed) in pairwise(points):
        if kept >= 0.0 > missed:
            return load + (beyond - load) * kept / (kept - missed)
    return points[-1][0]


def margin(violations: float, quality: float) -> float:
    """Return the smaller of violations' and quality's distances from their bounds, as a share of the allowance;
    below 0 beyond."""
    return min((MOST_VIOLATIONS - violations) / MOST_VIOLATIONS, (quality - LEAST_QUALITY) / (1.0 - LEAST_QUALITY))


def loads_of(system: str, traces: Iterable[Trace], segment_s: float, constants: Constants) -> list[Points]:
    """Return each trace's result at each load of the search for the largest carried one."""
    traces = list(traces)
    tried: dict[int, list[LoadRun]] = {}

    def is_carried(number: int) -> bool:
        if number not in tried:
            tried[number] = [play(system, trace, LOADS[number], segment_s, constants) for trace in traces]
        runs = tried[number]
        return margin(*(float(np.mean(of)) for of in zip(*((r.violations, r.quality) for r in runs), strict=True))) >= 0

    search(is_carried, nearest(GUESSES.get(system, GUESS)))
    return [[tried[number][index].row() for number in sorted(tried)] for index in range(len(traces))]


def nearest(load: float) -> int:
    """Return the index of the grid's load."""
    return min(range(len(LOADS)), key=lambda number: abs(LOADS[number] - load))


def search(is_carried: Callable[[int], bool], guess: int) -> None:
    """Try loads of the grid until one is carried and the next is not."""
    low, high, step = guess, guess, 1
    while low > 0 and not is_carried(low):
        low, high, step = max(low - step, 0), low, step * 2
    if low == high:
        high = min(low + 1, len(LOADS) - 1)
        while high < len(LOADS) - 1 and is_carried(high):
            low, high, step = high, min(high + step, len(LOADS) - 1), step * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_carried(middle) else (low, middle)
    is_carried(low)


@cache
def play(system: str, trace: Trace, peak: float, segment_s: float, constants: Constants) -> LoadRun:
    """Play a trace on a system."""
    if system == RIVAL and constants.auroc != AUROC:
        # it uses no discriminator
        return play(system, trace, peak, segment_s, replace(constants, auroc=AUROC))
    workload = workload_of(trace, peak, segment_s)
    records = Simulation(scenario_of(system, peak, constants), workload, Random(trace.seed)).run()
    violated = sum(record.outcome.violation for record in records) / len(records)
    return LoadRun(system, trace, peak, violated, mean_quality(records))


def workload_of(trace: Trace, peak: float, segment_s: float, mix: ProductionMix = MIX) -> Workload:
    """Return the production mix at times with a rate that follows the shape up to `peak`."""
    low, seed = peak / SWING, trace.seed
    times = segment_times(
        tuple(Segment(segment_s, low + share * (peak - low)) for share in THREE[trace.shape]),
        np.random.default_rng(seed),
    )
    count = WARM_COUNT + len(times)
    content = Content(
        prompts=("",) * count,
        embeddings=synthetic_log(count, np.random.default_rng(seed)),
        slo_classes=(SloClass("standard", SLO_S),),
        steps=STEPS,
        first_prompt=WARM_COUNT,
        sources=("synthetic",),
    )
    mixed = production_mix(times, np.random.default_rng(seed), content, mix)
    # the systems decide which model runs
    return replace(mixed, arrivals=tuple(replace(arrival, model="") for arrival in mixed.arrivals))


def settings_of(peak: float, constants: Constants) -> ServingSettings:
    """Return the settings of a system that has been running at the low load; static systems are provisioned for the
    peak."""
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
            ModelQuality(name, quality, spread_of(quality), constants.hit / quality)
            for name, quality in constants.quality.items()
        ),
    )


def spread_of(quality: float) -> float:
    """Return the quality difference between the easiest image, as good as the large model's, and the hardest."""
    return 2 * (1.0 - quality)


def scenario_of(system: str, peak: float, constants: Constants = Constants()) -> Scenario:
    """Return the fleet under a system."""
    rules = SelectionRules() if system == "nirvana-only" else replace(SelectionRules(), images=IMAGE_RULES.images)
    # NIRVANA stores five latents per prompt
    capacity = 5 * CAPACITY if system == "nirvana-only" else CAPACITY
    return Scenario(
        name=system,
        models=tuple(_model(name, constants) for name in MI210_SECONDS),
        devices=(SimulatedDevices(DEVICES, "large", max_batch=1),),
        policy=POLICIES[system](settings_of(peak, constants)),
        dataplane=DataplaneSettings(queue_limit=100_000),
        delays=Delays(score=steady(DISCRIMINATOR_S)),
        cache=CacheSettings(capacity, rules, shared=True, warm_count=WARM_COUNT),
        deferral=curve(CASCADE),
        confidence_correlation=correlation_of(constants.auroc),
        control_period_s=PERIOD_S,
        default_model="large",
        adapters=ADAPTERS,
    )


def _model(name: str, constants: Constants) -> SimulatedModel:
    quality = constants.quality[name]
    spread = spread_of(quality)
    costs = from_latencies(name, STEPS, {1: MI210_SECONDS[name]}, variation=0.02, load=steady(LOAD_S[name]))
    return SimulatedModel(
        costs,
        quality,
        spread,
        constants.hit / quality,
        deviation=own_deviation(spread) if name != "large" else 0.0,
        reuse_deviation=HIT_DEVIATION,
    )


if __name__ == "__main__":
    raise SystemExit(main())
