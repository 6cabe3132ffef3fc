"""Compare systems' violations and quality under loads that vary fourfold and exceed a static cascade's capacity.

    python -m benchmarks.slo_trace

Simulated by the serving code: the live dataplane with late binding, the policies, sixteen A100s with the latencies of
DiffServe's first cascade. Nothing is chosen after a run: a trace's peak is the capacity of the artefact's static
allocation times `ABOVE`, its low a quarter of that, and its shape one of three; arrivals and requests' difficulty are
equal for every system. A violation is a request that was late, dropped, rejected or failed. Prompts come from a
synthetic log with DiffusionDB's locality; caches have seen its start.

Quality is the answered requests', as a share of the heavy model's: the light one keeps on average what `tiny-light`
keeps of `tiny-heavy`'s CLIPScore, and a refined hit MoDM's share (7.3 of the paper) under any model. Confidence
predicts a light image's quality with the AUROC that `router` measured, while plans' profiles assume perfect prediction;
single images differ from these means as `router` and `selector_profile` measured. AUROC and hits' quality are varied
one at a time.

Joint serves with this suite's fallback, which no paper's system has. A control shows the value of its plans:
DiffServe's allocator over the same data path.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from benchmarks.papers.constants import CASCADES, Cascade, Held
from benchmarks.papers.systems import (
    AUROC,
    HIT_DEVIATION,
    HIT_MEAN,
    IMAGE_RULES,
    OURS,
    THREE,
    Shape,
    cascade_policy,
    cascade_scenario,
    cascade_settings,
    correlation_of,
    curve,
    own_deviation,
)
from lab.runs import RequestRecord
from lab.runs.figures import mean_quality
from lab.runs.intervals import ratio_of_sums
from lab.runs.measure import Figure, at_least, at_most, informative, measured, parse_options, publish
from lab.simulator import Scenario, Simulation
from lab.simulator.cache import CacheSettings
from lab.simulator.synthetic_log import synthetic_log
from lab.workloads import Content, Segment, SloClass, Workload, fluctuating
from pentimento.policies.cache_selection import SelectionRules
from pentimento.policies.plan.settings import ModelQuality
from pentimento.policies.thinning import ThinningMode, ThinningOption

CASCADE = CASCADES[0]
ABOVE, SWING = 1.25, 4.0
SEGMENT_S = 2.0
SEEDS, MOVED_SEEDS = 10, 1
BASELINES = (
    "vanilla",
    "clipper-light",
    "clipper-heavy",
    "proteus",
    "static-cascade",
    "static-threshold",
    "diffserve",
    "nirvana-only",
    "modm",
)
# The papers drop late requests; this suite's frontdoor falls back by default. A control: a paper's allocator over this
# suite's data path.
FALLING_BACK, OURS_SERVES_AS = " falling back", "joint"
# ours, if the heavy model may skip steps under load, as plans assume
THINS = "joint thinning"
CONTROL = "diffserve" + FALLING_BACK
CONTROLS = (CONTROL, THINS)
OUR_OWN = (THINS, OURS_SERVES_AS)
SYSTEMS = (*BASELINES, *CONTROLS, OURS_SERVES_AS)
# systems with a target for their violations, as a multiple of our violations
FEWER = {"static-cascade": 1.4, "proteus": 1.7, "clipper-heavy": 26.0}
# These run on all traces; the others' are of one seed.
COMPARED = (*FEWER, "diffserve", CONTROL, OURS_SERVES_AS)
# the papers' allocators
PAPERS = ("diffserve", "modm")
# zoo_quality: the light model's share of the heavy one's CLIPScore; the easiest image keeps all of it
LIGHT_QUALITY = 0.84
LIGHT_SPREAD = 2 * (1 - LIGHT_QUALITY)
# MoDM, 7.3, and NIRVANA, 7.2: CLIPScore of hits over the large model's
REFINED, RESUMED = 0.997, 0.951
WARM_COUNT, CAPACITY = 3_000, 10_000
# For the heavy model, the steps that `tiny-heavy` may skip of its 50, and the quality kept on unseen prompts
# (benchmarks.thinning).
THINNED = (ThinningOption(3, 12, 0.997),)


# Qualities for the joint problem and for answers. A hit's image is as good under any model.
def qualities(hit: float) -> tuple[ModelQuality, ...]:
    """Return the joint problem's qualities; a refined hit keeps `hit`."""
    return (
        ModelQuality("light", LIGHT_QUALITY, LIGHT_SPREAD, hit / LIGHT_QUALITY),
        ModelQuality("heavy", 1.0, reuse=hit),
    )


QUALITIES = qualities(REFINED)


@dataclass(frozen=True)
class TraceConstants:
    """Assume how well confidence predicts quality, and the quality of refined hits."""

    auroc: float = AUROC
    hit: float = REFINED


MEASURED = "as measured"
CASES: Mapping[str, TraceConstants] = {
    MEASURED: TraceConstants(),
    "AUROC 0.5": TraceConstants(auroc=0.5),
    "AUROC 1": TraceConstants(auroc=1.0),
    f"hits keep {HIT_MEAN:g}": TraceConstants(hit=HIT_MEAN),
}


@dataclass(frozen=True)
class TraceRun:
    """Store a system's result under one trace: violations as a share of requests, quality of the answered ones."""

    system: str
    trace: str
    violations: float
    quality: float
    request_count: int
    seed: int = 1

    def line(self) -> str:
        return (
            f"{self.system}, {self.trace}, seed {self.seed}: violations {self.violations:.5f}, "
            f"quality {self.quality:.5f}, {self.request_count} requests"
        )


def main() -> int:
    options = parse_options("slo_trace", __doc__, add_options)
    systems = options.rest["systems"] or SYSTEMS
    peak = ABOVE * static_capacity_per_s(CASCADE)
    segment_s = SEGMENT_S / 4 if options.quick else SEGMENT_S
    figures: list[Figure] = []
    for case, constants in CASES.items():
        played = systems if case == MEASURED else [one for one in (CONTROL, OURS_SERVES_AS) if one in systems]
        seeds = 1 if options.quick else SEEDS if case == MEASURED else MOVED_SEEDS
        runs = list(runs_of(played, seeds, segment_s, peak, constants))
        found = figures_of(runs, systems[-1]) if case == MEASURED else beside_control(runs)
        figures += [replace(figure, name=f"{case}: {figure.name}") if case != MEASURED else figure for figure in found]
    notes = {"peak_per_s": peak, "slo_s": CASCADE.slo_s, "segment_s": segment_s, "simulated": True}
    return publish(options, figures, notes=notes)


def runs_of(
    systems: Sequence[str], seeds: int, segment_s: float, peak: float, constants: TraceConstants
) -> Iterator[TraceRun]:
    """Yield the runs of all systems, trace by trace."""
    for seed in range(1, seeds + 1):
        for name, shape in THREE.items():
            workload = trace_load(shape, peak / SWING, peak, segment_s, seed)
            for system in systems:
                if seed == 1 or system in COMPARED:
                    run = run_of(system, name, workload, peak, seed, constants)
                    print(run.line(), flush=True)
                    yield run


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, help="only these; the last one is ours")


def static_capacity_per_s(cascade: Cascade) -> float:
    """Return the capacity of the artefact's static allocation: its light devices serve all requests, its heavy ones the
    deferred share."""
    held: Held = cascade.static
    light = held.light_count * held.light_batch / cascade.light[held.light_batch]
    heavy = held.heavy_count * held.heavy_batch / cascade.heavy[held.heavy_batch]
    return min(light, heavy / curve(cascade).share(held.threshold))


def trace_load(shape: Shape, low: float, peak: float, segment_s: float, seed: int) -> Workload:
    """Return Poisson arrivals at a rate (per second) that follows the shape, with prompts after those of the caches."""
    segments = tuple(Segment(segment_s, low + share * (peak - low)) for share in shape)
    expected = sum(segment.duration_s * segment.rate for segment in segments)
    count = WARM_COUNT + round(1.1 * expected)
    content = Content(
        prompts=("",) * count,
        embeddings=synthetic_log(count, np.random.default_rng(seed)),
        slo_classes=(SloClass("standard", CASCADE.slo_s),),
        steps=50,
        first_prompt=WARM_COUNT,
        sources=("synthetic",),
    )
    return fluctuating(np.random.default_rng(seed), content, segments)


def scenario_of(system: str, peak: float, constants: TraceConstants = TraceConstants()) -> Scenario:
    """Return the fleet of a system that has run at the low load; static systems are provisioned for the peak."""
    thins = system == THINS
    name = OURS_SERVES_AS if thins else system.removesuffix(FALLING_BACK)
    settings = replace(cascade_settings(CASCADE, peak / SWING), peak_per_s=peak, qualities=qualities(constants.hit))
    plain = cascade_scenario(CASCADE, cascade_policy(name, CASCADE, settings), path=OURS)
    by_model = {known.model: known for known in qualities(constants.hit)}
    models = tuple(
        replace(
            model,
            quality=by_model[model.name].quality,
            quality_spread=by_model[model.name].spread,
            reuse_quality=RESUMED if system == "nirvana-only" else by_model[model.name].reuse,
            deviation=own_deviation(LIGHT_SPREAD) if model.name == "light" else 0.0,
            reuse_deviation=HIT_DEVIATION,
            thinning=THINNED if thins and model.name == "heavy" else (),
        )
        for model in plain.models
    )
    rules = SelectionRules() if system == "nirvana-only" else replace(SelectionRules(), images=IMAGE_RULES.images)
    # NIRVANA stores five latents per prompt
    capacity = 5 * CAPACITY if system == "nirvana-only" else CAPACITY
    cache = CacheSettings(capacity, rules, shared=True, warm_count=WARM_COUNT)
    thinning = ThinningMode.LOAD if thins else ThinningMode.OFF
    dataplane = replace(plain.dataplane, fall_back=falls_back(system), thinning=thinning)
    correlation = correlation_of(constants.auroc)
    return replace(plain, models=models, cache=cache, dataplane=dataplane, confidence_correlation=correlation)


def falls_back(system: str) -> bool:
    """Return whether a light image replaces a heavy one that would be late: this suite's default, and no paper's."""
    return system in (OURS_SERVES_AS, *CONTROLS)


def run_of(
    system: str, trace: str, workload: Workload, peak: float, seed: int, constants: TraceConstants = TraceConstants()
) -> TraceRun:
    """Play a trace on a system."""
    records: list[RequestRecord] = Simulation(scenario_of(system, peak, constants), workload, Random(seed)).run()
    violated = sum(record.outcome.violation for record in records)
    return TraceRun(system, trace, violated / len(records), mean_quality(records), len(records), seed)


def figures_of(runs: Sequence[TraceRun], ours: str) -> list[Figure]:
    """Return the ratios to ours, whether any system dominates ours, and all systems' results."""
    by_system = {name: [run for run in runs if run.system == name] for name in dict.fromkeys(r.system for r in runs)}
    means = {name: (mean([r.violations for r in of]), mean([r.quality for r in of])) for name, of in by_system.items()}
    found = [fewer(by_system, name, ours, factor) for name, factor in FEWER.items() if name in by_system]
    better = [name for name, other in means.items() if name not in OUR_OWN and dominates(other, means[ours])]
    found.append(Figure(f"systems that dominate {ours}", len(better), at_most(0)))
    for paper in PAPERS:
        if paper in means and paper != ours:
            count = min(len(by_system[ours]), len(by_system[paper]))
            less = means[paper][0] - means[ours][0]
            found.append(Figure(f"violations of {paper} − those of {ours}", less, at_least(0.0), count))
            gained = means[ours][1] - means[paper][1]
            found.append(Figure(f"quality of {ours} − that of {paper}", gained, at_least(0.0), count))
    if ours in by_system and CONTROL in by_system:
        found += beside_control(runs)
    for name, of in by_system.items():
        found.append(measured(f"{name}: violations", [r.violations for r in of], mean, informative()))
        found.append(measured(f"{name}: quality of answered requests", [r.quality for r in of], mean, informative()))
    return found


def beside_control(runs: Sequence[TraceRun]) -> list[Figure]:
    """Return our violations and quality less the control's."""
    ours, control = ([run for run in runs if run.system == name] for name in (OURS_SERVES_AS, CONTROL))
    pairs = [
        [[own.violations, other.violations], [own.quality, other.quality]]
        for own, other in zip(ours, control, strict=True)
    ]
    return [
        measured(f"{what} of {OURS_SERVES_AS} − of {CONTROL}", [pair[number] for pair in pairs], gap, informative())
        for number, what in enumerate(("violations", "quality"))
    ]


def gap(pairs: Sequence[Sequence[float]]) -> float:
    """Return the mean of our values less theirs."""
    return float(np.mean([ours - theirs for ours, theirs in pairs]))


def fewer(by_system: Mapping[str, Sequence[TraceRun]], name: str, ours: str, factor: float) -> Figure:
    """Return a system's violations ÷ ours; a sample is a trace's two shares, with at least one request for ours."""
    pairs = [
        (other.violations, max(own.violations, 1 / own.request_count))
        for other, own in zip(by_system[name], by_system[ours], strict=False)
    ]
    return measured(f"violations of {name} ÷ those of {ours}", pairs, ratio_of_sums, at_least(factor))


def dominates(other: tuple[float, float], own: tuple[float, float]) -> bool:
    """Return whether the other (violations, quality) is no worse in either, and better in one."""
    return other[0] <= own[0] and other[1] >= own[1] and other != own


def mean(values: Sequence[float]) -> float:
    """Return the mean of shares."""
    return float(np.mean(values))


if __name__ == "__main__":
    raise SystemExit(main())
