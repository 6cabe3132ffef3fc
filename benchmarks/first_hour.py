"""Compare a model's first hour in a running suite with the same hour after everything was profiled in advance.

    python -m benchmarks.first_hour [--seeds 2]

Simulated: an hour of eight devices takes about a minute. Dataplane, joint policy, selector, eviction and plan are
those of the suite; starts and trials are decided by the gateway's code over a real ledger, and paid for by the
frontdoor's budget (as in `earned_reuse`). Seconds are DiffServe's for SDXL and SDXL-Lightning on A100s. The production
mix: prompts of a synthetic log with DiffusionDB's locality, LoRAs as MLoRA counted them, ControlNets on a fifth of the
requests.

Both sides begin with an empty cache and hold the costs of a step, which workers measure themselves. A profile gives the
rest: the similarities that allow reuse, the steps that load may skip, the steps before a LoRA is loaded, and the
discriminator of a cascade with its deferral curve. Reuse and skipped steps are those of the shipped profiles of
`tiny-heavy`, and the outcome of a trial is that of a recorded pair of its images. Without profiles reuse is earned by
trials, and the rest is missing: all steps are taken, LoRAs load before the first step, and every image is the heavy
model's.

The load is the largest that the profiled side carries as `joint` defines it: at most 5 % of the requests are late,
dropped or rejected, and the mean quality of the answered ones is at least 0.95 of the heavy model's. An image counts if
it is answered in time, in the minute of its end.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from benchmarks.joint import ADAPTERS, LIGHT, MIX, margin, search, spread_of
from benchmarks.papers.constants import CASCADES, CONTROL_PERIOD_S, DISCRIMINATOR_S
from benchmarks.papers.systems import AUROC, HIT_DEVIATION, HIT_MEAN, correlation_of, curve, own_deviation
from benchmarks.suites.earning import HEAVY, PROFILED_MODEL, STEPS, HourSimulation, Known, WatchedCache
from lab.emulation.costs import from_latencies
from lab.planners.registry import POLICIES
from lab.runs import Outcome, RequestRecord
from lab.runs.figures import mean_quality
from lab.runs.measure import Figure, at_least, informative, measured, parse_options, publish
from lab.simulator import Scenario
from lab.simulator.cache import CacheSettings
from lab.simulator.scenario import Delays, SimulatedDevices, SimulatedModel
from lab.simulator.synthetic_log import synthetic_log
from lab.workloads import Content, SloClass, Workload
from lab.workloads.production import production_mix
from lab.workloads.times import poisson_times
from pentimento.dataplane import DataplaneSettings
from pentimento.policies.plan.joint.policy import JointPolicy
from pentimento.policies.plan.registry import CacheUse, ServingPolicy
from pentimento.policies.plan.settings import ModelQuality, ServingSettings
from pentimento.policies.thinning import ThinningMode, ThinningOption
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import ProfileKind
from pentimento.profiles.kinds import options as skippable
from zoo.registry import WEIGHTS

PAIR = CASCADES[2]
LIGHT_MODEL, LIGHT_STEPS, DEVICES = "lightning", 4, 8
SEARCH_S = 300.0
# Requests per second, in steps of a tenth, and where the search begins.
LOADS = tuple(0.75 * 1.1**number for number in range(60))
GUESS = 16
HOUR_S, WINDOW_S = 3600.0, 600.0
# Runs with one missing profile, which does not change with time.
SHORT_S = 1200.0
SHOWN_MINUTES = (1, 2, 5, 10, 20, 30, 40, 50, 60)


PROFILED, NEW = Known(), Known(False, False, False, False)
MISSING_ONE = {
    "reuse": Known(reuse=False),
    "skipped steps": Known(steps=False),
    "late LoRAs": Known(loras=False),
    "the cascade": Known(cascade=False),
}


@dataclass(frozen=True)
class Hour:
    """Store a run: images a second of each minute, the share of requests that broke their SLO, the mean quality of the
    answered ones, compared shadows, and whether any cell of reuse is open at the end."""

    by_minute: tuple[float, ...]
    violations: float
    quality: float
    trials: int
    reuses: bool


def skippable_steps() -> tuple[ThinningOption, ...]:
    """Return the skipped steps that the shipped profile of images without adapters allows."""
    profiles = read_profiles([WEIGHTS.parent / "thinning_profiles"]).of(ProfileKind.STEPS)
    own = next(one for one in profiles if one.of.model == PROFILED_MODEL and not one.of.adapters)
    return skippable(own, STEPS)


def policy_of(known: Known, load: float) -> ServingPolicy:
    """Return the joint policy of the models that it may plan: a cascade needs its discriminator's curve."""
    settings = ServingSettings(
        heavy=HEAVY,
        light=LIGHT_MODEL,
        slo_s=PAIR.slo_s,
        deferral=curve(PAIR),
        discriminator_s=DISCRIMINATOR_S,
        expected_per_s=load,
        batch_sizes=(1, 2, 4),
        qualities=(ModelQuality(LIGHT_MODEL, LIGHT, spread_of(LIGHT)), ModelQuality(HEAVY, 1.0, 0.0, HIT_MEAN)),
    )
    policy = replace(POLICIES["joint"](settings), cache=CacheUse.LATENTS)
    return policy if known.cascade else replace(policy, allocator=JointPolicy(replace(settings, light="")))


def scenario_of(known: Known, load: float) -> Scenario:
    """Return the suite on the devices that serve the model."""
    heavy = from_latencies(HEAVY, STEPS, dict(PAIR.heavy), variation=0.02)
    light = from_latencies(LIGHT_MODEL, LIGHT_STEPS, dict(PAIR.light), variation=0.02)
    spread = spread_of(LIGHT)
    models = (
        SimulatedModel(
            heavy,
            1.0,
            reuse_quality=HIT_MEAN,
            reuse_deviation=HIT_DEVIATION,
            thinning=skippable_steps() if known.steps else (),
        ),
        SimulatedModel(light, LIGHT, spread, deviation=own_deviation(spread)),
    )
    names = (HEAVY, LIGHT_MODEL) if known.cascade else (HEAVY,)
    return Scenario(
        name="first hour",
        models=models,
        devices=(SimulatedDevices(DEVICES, HEAVY, models=names, max_batch=4),),
        policy=policy_of(known, load),
        dataplane=DataplaneSettings(queue_limit=10_000, thinning=ThinningMode.LOAD),
        delays=Delays(),
        deferral=curve(PAIR),
        confidence_correlation=correlation_of(AUROC),
        control_period_s=CONTROL_PERIOD_S,
        default_model=HEAVY,
        adapters=ADAPTERS if known.loras else replace(ADAPTERS, latest_start_fraction=0.0),
    )


def workload_of(load: float, duration_s: float, seed: int) -> Workload:
    """Return the production mix of one model's requests at a steady rate."""
    times = poisson_times(load, duration_s, np.random.default_rng(seed))
    content = Content(
        prompts=("",) * len(times),
        embeddings=synthetic_log(len(times), np.random.default_rng(seed)),
        slo_classes=(SloClass("standard", PAIR.slo_s),),
        steps=STEPS,
        sources=("synthetic",),
    )
    mixed = production_mix(times, np.random.default_rng(seed), content, MIX)
    return replace(mixed, arrivals=tuple(replace(arrival, model="") for arrival in mixed.arrivals))


@contextmanager
def opened_cache(known: Known, workload: Workload, seed: int) -> Iterator[WatchedCache]:
    """Yield an empty cache over a new ledger."""
    settings = CacheSettings(50_000, shared=True, retrieval_similarity=0.85)
    assert workload.embeddings is not None
    with tempfile.TemporaryDirectory() as folder:
        cache = WatchedCache(folder, known, settings, workload.embeddings, seed)
        try:
            yield cache
        finally:
            cache.close()


def play(known: Known, load: float, duration_s: float, seed: int) -> Hour:
    """Play the requests of one seed against a side."""
    workload = workload_of(load, duration_s, seed)
    with opened_cache(known, workload, seed) as cache:
        simulation = HourSimulation(scenario_of(known, load), workload, Random(seed), cache)
        records = simulation.run()
        reuses = bool(cache.watch.of(cache.of.model_digest, cache.of.encoder_digest).latents.thresholds)
    violations = sum(record.outcome.violation for record in records) / len(records)
    images = by_minute(records, int(duration_s // 60))
    return Hour(images, violations, mean_quality(records), simulation.trial_count, reuses)


def by_minute(records: Sequence[RequestRecord], minutes: int) -> tuple[float, ...]:
    """Return the images a second that were answered in time, for each minute."""
    counts = [0] * minutes
    for record in records:
        minute = int(record.ended_s // 60)
        if record.outcome is Outcome.COMPLETED and minute < minutes:
            counts[minute] += 1
    return tuple(count / 60 for count in counts)


def carried_load() -> float:
    """Return the largest load of the grid that the profiled side carries."""
    tried: dict[int, bool] = {}

    def is_carried(number: int) -> bool:
        if number not in tried:
            found = play(PROFILED, LOADS[number], SEARCH_S, seed=0)
            tried[number] = margin(found.violations, found.quality) >= 0.0
        return tried[number]

    search(is_carried, GUESS)
    return LOADS[max((number for number, carried in tried.items() if carried), default=0)]


def ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the images of the first side ÷ those of the second."""
    return sum(ours for ours, _ in pairs) / sum(theirs for _, theirs in pairs)


def minutes_of(ours: Sequence[Hour], theirs: Sequence[Hour], first: int, last: int) -> list[tuple[float, float]]:
    """Return the pairs of minutes `first` to `last`, counted from 1, of all seeds."""
    return [
        (mine.by_minute[minute], other.by_minute[minute])
        for mine, other in zip(ours, theirs, strict=True)
        for minute in range(first - 1, last)
    ]


def figures_of(new: Sequence[Hour], profiled: Sequence[Hour], missing: dict[str, Hour], load: float) -> list[Figure]:
    """Return the figures of runs of the same seeds."""
    hour, whole = int(HOUR_S // 60), len(new[0].by_minute)
    after = minutes_of(new, profiled, hour + 1, whole)
    figures = [measured("images/s after the hour ÷ with everything profiled", after, ratio, at_least(0.8))]
    for minute in SHOWN_MINUTES:
        pairs = minutes_of(new, profiled, minute, minute)
        figures.append(Figure(f"the same, minute {minute}", ratio(pairs), informative(), len(pairs)))
    for name, run in missing.items():
        pairs = minutes_of([run], profiled[:1], len(run.by_minute) // 2 + 1, len(run.by_minute))
        figures.append(measured(f"everything profiled but {name}", pairs, ratio, informative()))
    figures += [
        Figure("requests per second of both sides", load, informative("1/s"), 1),
        Figure(
            "images/s with everything profiled, after the hour",
            statistics.fmean(theirs for _, theirs in after),
            informative("1/s"),
            len(after),
        ),
        Figure(
            "mean quality of the images with everything profiled",
            statistics.fmean(one.quality for one in profiled),
            informative(),
            len(profiled),
        ),
        Figure("trials compared in the first side, mean", statistics.fmean(one.trials for one in new), informative()),
        Figure(
            "share of runs in which trials have opened reuse",
            statistics.fmean(one.reuses for one in new),
            informative(),
        ),
    ]
    return figures


def main() -> int:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seeds", type=int, default=2)

    options = parse_options("first_hour", __doc__, add)
    seeds, duration_s = (1, HOUR_S + 120.0) if options.quick else (options.rest["seeds"], HOUR_S + WINDOW_S)
    load = carried_load()
    print(f"load {load:.2f}/s", flush=True)
    runs: dict[Known, list[Hour]] = {NEW: [], PROFILED: []}
    for seed in range(1, seeds + 1):
        for known in (NEW, PROFILED) if seed % 2 else (PROFILED, NEW):
            runs[known].append(play(known, load, duration_s, seed))
    missing = {name: play(known, load, min(SHORT_S, duration_s), 1) for name, known in MISSING_ONE.items()}
    notes = {"seeds": seeds, "minutes": duration_s / 60, "devices": DEVICES, "simulated": True}
    return publish(options, figures_of(runs[NEW], runs[PROFILED], missing, load), notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
