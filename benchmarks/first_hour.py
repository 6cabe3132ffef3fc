"""Compare a model's first hour in a running suite with the same hour after everything was profiled in advance.

    python -m benchmarks.first_hour [--seeds 2]

Simulated: an hour of eight devices takes about a minute. In the first hour one device, or two, run `pentimento profile`
instead of serving: steps, then reuse (with two devices both at once), and serve when these are measured.

Dataplane, joint policy, selector, eviction and plan are those of the suite; starts and trials are decided by the
gateway's code over a real ledger, and paid for by the frontdoor's budget (as in `earned_reuse`). Seconds are
DiffServe's for SDXL and SDXL-Lightning on A100s. The production mix: prompts of a synthetic log with DiffusionDB's
locality, LoRAs as MLoRA counted them, ControlNets on a fifth of the requests.

Both sides begin with an empty cache and hold the costs of a step, which workers measure themselves. A profile gives the
rest: the similarities that allow reuse, the steps that load may skip, the steps before a LoRA is loaded, and the
discriminator of a cascade with its deferral curve. Until a profile is measured, reuse is earned by trials, and the rest
is missing: all steps are taken, LoRAs load before the first step, and every image is the heavy model's. LoRAs and the
cascade stay so in the first hour. The outcome of a trial is that of a recorded pair of `tiny-heavy`'s images.

Reuse and skipped steps are as the commands measured them on `tiny-heavy`, which takes 50 steps like SDXL (`profile_cost
--record`). A row is in force from its writing, after the same number of denoising steps as on `tiny-heavy`, each with
the seconds of SDXL's in a batch of sixteen.

The load is the largest that the profiled side carries as `joint` defines it: at most 5 % of the requests are late,
dropped or rejected, and the mean quality of the answered ones is at least 0.95 of the heavy model's. An image counts if
it is answered in time, in the minute of its end.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from random import Random

import numpy as np

from benchmarks.joint import ADAPTERS, LIGHT, MIX, margin, search, spread_of
from benchmarks.papers.constants import CASCADES, CONTROL_PERIOD_S, DISCRIMINATOR_S
from benchmarks.papers.systems import AUROC, HIT_DEVIATION, HIT_MEAN, correlation_of, curve, own_deviation
from benchmarks.suites.earning import (
    HEAVY,
    STEPS,
    HourSimulation,
    Known,
    MeasuredProfile,
    WatchedCache,
    measured_profiles,
)
from lab.emulation.costs import from_latencies
from lab.planners.registry import POLICIES
from lab.runs import Outcome, RequestRecord
from lab.runs.figures import mean_quality
from lab.runs.measure import Figure, at_least, informative, measured, parse_options, publish
from lab.simulator import Scenario
from lab.simulator.cache import CacheSettings
from lab.simulator.scenario import Delays, Outage, SimulatedDevices, SimulatedModel
from lab.simulator.synthetic_log import synthetic_log
from lab.workloads import Content, SloClass, Workload
from lab.workloads.production import production_mix
from lab.workloads.times import poisson_times
from pentimento.dataplane import DataplaneSettings
from pentimento.policies.plan.joint.policy import JointPolicy
from pentimento.policies.plan.registry import CacheUse, ServingPolicy
from pentimento.policies.plan.settings import ModelQuality, ServingSettings
from pentimento.policies.thinning import ThinningMode
from pentimento.profiles.document import Profile, ProfileKind
from pentimento.profiles.kinds import options

PAIR = CASCADES[2]
LIGHT_MODEL, LIGHT_STEPS, DEVICES = "lightning", 4, 8
SEARCH_S = 300.0
# Requests per second, in steps of a tenth, and where the search begins.
LOADS = tuple(0.75 * 1.1**number for number in range(60))
GUESS = 16
HOUR_S, WINDOW_S = 3600.0, 600.0
# Runs with one missing profile, which does not change with time.
SHORT_S = 1200.0
SHOWN_MINUTES = (1, 5, 10, 15, 20, 30, 40, 50, 60)
# Minutes of a shown window.
SHOWN = 5
# Seconds of a step of an image that a profile generates: `pentimento profile` runs sixteen in a batch.
PROFILE_STEP_S = PAIR.heavy[16] / (STEPS * 16)

PROFILED, NEW = Known(), Known(False, False, False, False)
# The kind that saves steps of every image comes first, then the one of hits.
ONE_DEVICE = replace(NEW, measured=((ProfileKind.STEPS, ProfileKind.REUSE),))
TWO_DEVICES = replace(NEW, measured=((ProfileKind.STEPS,), (ProfileKind.REUSE,)))
SIDES = {"one device profiles": ONE_DEVICE, "two devices profile": TWO_DEVICES, "no device profiles": NEW}
MISSING_ONE = {
    "reuse": Known(reuse=False),
    "skipped steps": Known(steps=False),
    "late LoRAs": Known(loras=False),
    "the cascade": Known(cascade=False),
}


@dataclass(frozen=True)
class Hour:
    """Store a run: images a second of each minute, the share of requests that broke their SLO, the mean quality of the
    answered ones, and compared shadows."""

    by_minute: tuple[float, ...]
    violations: float
    quality: float
    trials: int


@cache
def recorded() -> Mapping[ProfileKind, MeasuredProfile]:
    """Return the profiles of reuse and skipped steps, as they were measured."""
    return measured_profiles()


@dataclass(frozen=True)
class ProfilingCourse:
    """List the profiles that come into force, with their seconds, and the outages of the devices that measure them."""

    changes: tuple[tuple[float, Profile], ...]
    outages: tuple[Outage, ...]


def course_of(known: Known) -> ProfilingCourse:
    """Return the profiles that are known at the start, and the course of the measured ones."""
    there = {ProfileKind.REUSE: known.reuse, ProfileKind.STEPS: known.steps}
    changes = [(0.0, recorded()[kind].profile) for kind, is_known in there.items() if is_known]
    outages = []
    for number, kinds in enumerate(known.measured):
        begun_s = 0.0
        for one in map(recorded().get, kinds):
            assert one is not None
            changes += [(begun_s + steps * PROFILE_STEP_S, one.after(steps)) for steps in one.image_steps]
            begun_s += one.image_steps[-1] * PROFILE_STEP_S
        outages.append(Outage(f"w0-{DEVICES - 1 - number}", 0.0, begun_s, noticed_s=0.0))
    return ProfilingCourse(tuple(changes), tuple(outages))


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
            thinning=options(recorded()[ProfileKind.STEPS].profile, STEPS),
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
        outages=course_of(known).outages,
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
def opened_cache(workload: Workload, seed: int) -> Iterator[WatchedCache]:
    """Yield an empty cache over a new ledger."""
    settings = CacheSettings(50_000, shared=True, retrieval_similarity=0.85)
    assert workload.embeddings is not None
    with tempfile.TemporaryDirectory() as folder:
        cache = WatchedCache(folder, recorded()[ProfileKind.REUSE].profile, settings, workload.embeddings, seed)
        try:
            yield cache
        finally:
            cache.close()


def play(known: Known, load: float, duration_s: float, seed: int) -> Hour:
    """Play the requests of one seed against a side."""
    workload = workload_of(load, duration_s, seed)
    with opened_cache(workload, seed) as cache:
        changes = course_of(known).changes
        simulation = HourSimulation(scenario_of(known, load), workload, Random(seed), cache, changes)
        records = simulation.run()
    violations = sum(record.outcome.violation for record in records) / len(records)
    images = by_minute(records, int(duration_s // 60))
    return Hour(images, violations, mean_quality(records), simulation.trial_count)


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


def figures_of(
    sides: Mapping[str, Sequence[Hour]], profiled: Sequence[Hour], missing: dict[str, Hour], load: float
) -> list[Figure]:
    """Return the figures of runs of the same seeds; the first of `sides` has the target."""
    hour, whole = int(HOUR_S // 60), len(profiled[0].by_minute)
    target, figures = at_least(0.8), []
    for name, hours in sides.items():
        after = minutes_of(hours, profiled, hour + 1, whole)
        figures.append(measured(f"images/s after the hour ÷ with everything profiled: {name}", after, ratio, target))
        target = informative()
        for minute in SHOWN_MINUTES:
            pairs = minutes_of(hours, profiled, max(minute - SHOWN, 0) + 1, minute)
            shown = f"{name}, minutes {max(minute - SHOWN, 0) + 1} to {minute}"
            figures.append(Figure(shown, ratio(pairs), informative(), len(pairs)))
        quality = statistics.fmean(one.quality for one in hours)
        figures.append(Figure(f"{name}: mean quality of the images", quality, informative(), len(hours)))
        trials = statistics.fmean(one.trials for one in hours)
        figures.append(Figure(f"{name}: trials compared, mean", trials, informative(), len(hours)))
    for kind, one in recorded().items():
        minutes = one.image_steps[-1] * PROFILE_STEP_S / 60
        figures.append(Figure(f"a device's minutes of the profile of {kind.value}", minutes, informative("min")))
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
    ]
    return figures


def main() -> int:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seeds", type=int, default=2)

    asked = parse_options("first_hour", __doc__, add)
    seeds, duration_s = (1, HOUR_S + 120.0) if asked.quick else (asked.rest["seeds"], HOUR_S + WINDOW_S)
    load = carried_load()
    print(f"load {load:.2f}/s", flush=True)
    runs: dict[Known, list[Hour]] = {known: [] for known in (PROFILED, *SIDES.values())}
    for seed, known in product(range(1, seeds + 1), runs):
        runs[known].append(play(known, load, duration_s, seed))
        print(f"seed {seed}, {known}: {runs[known][-1].by_minute}", flush=True)
    missing = {name: play(known, load, min(SHORT_S, duration_s), 1) for name, known in MISSING_ONE.items()}
    notes = {"seeds": seeds, "minutes": duration_s / 60, "devices": DEVICES, "simulated": True}
    sides = {name: runs[known] for name, known in SIDES.items()}
    return publish(asked, figures_of(sides, runs[PROFILED], missing, load), notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
