"""Measure the images in time under load with skipped steps, and their quality against the profile.

    python -m benchmarks.thinning --scorer SCORERS [--model tiny-heavy] [--prompts 128]

Simulated: sixteen devices that hold the model, with its measured costs, the live dataplane, and Poisson arrivals at two
and five times the devices' capacity with all steps. Every request has a deadline of three times its time alone. The
same arrivals are played without thinning, with thinning to meet deadlines only, and under load too; goodput counts
images in time. Rejected or dropped requests count in no arm.

Real: prompts that did not make the profile (`zoo.scene_log`, another seed), with all steps and by the thinning that
skips the most, same seeds; CLIPScore and attribute scores against the full run's, as in the profile. The stricter of
the two counts. SCORERS is a work folder of training (`benchmarks.image_scorers`).

No paper thins a running sampler; the ratio's target is ours.
"""

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch

from benchmarks.chosen import only
from benchmarks.selector_profile import LocalEncoder
from benchmarks.thinning_profiles import scorers_of
from lab.emulation.costs import ModelCosts, costs_of
from lab.emulation.fleet_file import read_fleet
from lab.runs import Outcome, RequestRecord
from lab.runs.intervals import median_ratio, ratio_of_sums
from lab.runs.measure import (
    Figure,
    at_least,
    at_most,
    counted,
    informative,
    measured,
    parse_options,
    publish,
    share,
    surely_above,
)
from lab.simulator import Scenario, Simulation
from lab.simulator.scenario import SimulatedDevices, SimulatedModel
from lab.workloads import Arrival, Workload
from pentimento.dataplane import DataplaneSettings
from pentimento.diffusion.weights import quiet_loaders
from pentimento.policies.plan.inputs import hold_resident
from pentimento.policies.plan.registry import ServingPolicy
from pentimento.policies.thinning import ThinningMode, ThinningOption
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import Profile, ProfileKind
from pentimento.profiles.kinds import options as allowed_options
from pentimento.profiles.kinds import profile_name
from pentimento.supervisor.models import THINNING_PROFILES
from services.embedder.model import open_model
from services.unet_worker.profiling.reuse import study_model
from services.unet_worker.profiling.settings import StudyRunSettings
from services.unet_worker.profiling.steps_study import ClipScore, ThinningStudy, full_requests
from zoo.registry import WEIGHTS
from zoo.scene_log import clip_embedder, write_scene_log

FLEET = Path(__file__).resolve().parents[1] / "scenarios" / "fleets" / "zoo-16.toml"
DEVICES, MAX_BATCH = 16, 8
LOADS = (2, 5)
DEADLINE_RUNS = 3.0
ALPHA = 0.95
BATCH = 16
POLICY = ServingPolicy("resident", hold_resident, plans_batches=False, moves_models=False)


@dataclass(frozen=True)
class Round:
    """Store one play of one workload: images in time a second, shares of late and of thinned requests, and the least
    share of the full run's quality that an image's thinning keeps."""

    load: int
    seed: int
    mode: ThinningMode
    goodput_per_s: float
    late_count: int
    thinned_count: int
    answered_count: int
    least_share: float


def main() -> int:
    options = parse_options("thinning", __doc__, add_options)
    rest = options.rest
    profile = plain_profile(rest["model"])
    found = allowed_options(profile, profile.conditions.step_count)
    costs = costs_of(read_fleet(FLEET).model(rest["model"]))
    seeds, duration_s = (range(2), 20.0) if options.quick else (range(5), 60.0)
    rounds = [
        play(costs, found, load, mode, seed, duration_s) for seed in seeds for load in LOADS for mode in ThinningMode
    ]
    figures = [figure for load in LOADS for figure in figures_of(load, rounds)]
    figures += quality_figures(rounds)
    held_out = UnseenPrompts(rest["scorer"], 8 if options.quick else rest["prompts"], rest["log_seed"])
    figures += held_out_figures(profile, held_out)
    return publish(
        options,
        figures,
        notes={"profile": profile_name(profile), "fleet": FLEET.name, "capacity_per_s": capacity_per_s(costs)},
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scorer", type=Path, required=True, metavar="DIR", help="folder of the attribute scorer")
    parser.add_argument("--model", default="tiny-heavy")
    parser.add_argument("--prompts", type=int, default=128, help="of the held-out log")
    parser.add_argument("--log-seed", type=int, default=22)


def plain_profile(model: str, directory: Path = THINNING_PROFILES, kind: ProfileKind = ProfileKind.STEPS) -> Profile:
    """Return the model's profile without LoRAs and ControlNets. Raises as `only` unless there is exactly one."""
    found = (one for one in read_profiles([directory]).of(kind) if one.of.model == model and not one.of.adapters)
    return only(found, f"profile of {kind.value} of {model} alone")


def capacity_per_s(costs: ModelCosts) -> float:
    """Return the images per second of all devices with full batches and all steps."""
    batch = min(MAX_BATCH, costs.max_batch)
    return DEVICES * batch / costs.run_s(batch)


def play(
    costs: ModelCosts, found: tuple[ThinningOption, ...], load: int, mode: ThinningMode, seed: int, duration_s: float
) -> Round:
    """Play one workload."""
    rate, deadline_s = load * capacity_per_s(costs), DEADLINE_RUNS * costs.run_s(min(MAX_BATCH, costs.max_batch))
    model = SimulatedModel(costs, quality=1.0, thinning=found)
    scenario = Scenario(
        name=mode.value,
        models=(model,),
        devices=(SimulatedDevices(DEVICES, costs.model, max_batch=MAX_BATCH),),
        policy=POLICY,
        dataplane=DataplaneSettings(thinning=mode),
        default_model=costs.model,
        control_period_s=1_000.0,
    )
    workload = poisson(rate, round(rate * duration_s), costs.step_count, deadline_s, seed)
    return round_of(load, mode, seed, workload, Simulation(scenario, workload, Random(seed)).run())


def poisson(rate: float, count: int, steps: int, deadline_s: float, seed: int) -> Workload:
    """Return `count` arrivals at that rate."""
    random, now = Random(f"thinning {seed}"), 0.0
    arrivals: list[Arrival] = []
    for index in range(count):
        now += random.expovariate(rate)
        arrivals.append(Arrival(now, "default", "", "standard", deadline_s, steps, index))
    return Workload("poisson", tuple(arrivals), {})


def round_of(load: int, mode: ThinningMode, seed: int, workload: Workload, records: Sequence[RequestRecord]) -> Round:
    """Return a workload's results."""
    answered = [record for record in records if record.outcome.answered]
    shares = [record.quality for record in answered if record.quality is not None]
    in_time = sum(record.outcome is Outcome.COMPLETED for record in records)
    return Round(
        load,
        seed,
        mode,
        in_time / workload.duration_s,
        sum(record.outcome is Outcome.LATE for record in records),
        sum(share != 1.0 for share in shares),
        len(answered),
        min(shares, default=1.0),
    )


def figures_of(load: int, rounds: Sequence[Round]) -> Iterator[Figure]:
    """Yield the goodput of both modes against none, and the late share."""
    of_load = [one for one in rounds if one.load == load]
    arms: Mapping[ThinningMode, list[Round]] = {
        mode: [one for one in of_load if one.mode is mode] for mode in ThinningMode
    }
    plain = [one.goodput_per_s for one in arms[ThinningMode.OFF]]
    yield measured(f"goodput at {load}x without thinning", plain, statistics.median, informative("1/s"))
    for mode in (ThinningMode.DEADLINE, ThinningMode.LOAD):
        pairs = [
            (one.goodput_per_s, other.goodput_per_s)
            for one, other in zip(arms[mode], arms[ThinningMode.OFF], strict=True)
        ]
        target = at_least(1.5) if mode is ThinningMode.LOAD else informative()
        yield measured(f"goodput at {load}x, thinning by {mode.value} ÷ without", pairs, median_ratio, target)
        late, answered = sum(one.late_count for one in arms[mode]), sum(one.answered_count for one in arms[mode])
        name = f"late at {load}x, of those answered, thinning by {mode.value}"
        target = at_most(0.01) if mode is ThinningMode.LOAD else informative()
        yield share(name, late, answered, target)


def quality_figures(rounds: Sequence[Round]) -> Iterator[Figure]:
    """Yield the number of thinned images, and of images thinned further than the profile allows."""
    answered, thinned = sum(one.answered_count for one in rounds), sum(one.thinned_count for one in rounds)
    below = sum(one.least_share < ALPHA for one in rounds)
    yield counted("rounds with a picture thinned below alpha", below, len(rounds), at_most(0.0))
    yield Figure("thinned, of all pictures of all arms", thinned / answered, informative())


@dataclass(frozen=True)
class UnseenPrompts:
    """Name `count` prompts of the log of that seed, and the work folder of their images' scorer."""

    scorer: Path
    count: int
    log_seed: int


def held_out_study(profile: Profile, held_out: UnseenPrompts) -> ThinningStudy:
    """Return the full images of prompts outside the profile."""
    torch.set_num_threads(1)
    quiet_loaders()
    folder = WEIGHTS / profile.of.encoder
    log = write_scene_log(2 * held_out.count, clip_embedder(folder), np.random.default_rng(held_out.log_seed))
    prompts = tuple(dict.fromkeys(log.prompts))[: held_out.count]
    scorers = (ClipScore(LocalEncoder(open_model(folder)), prompts), *scorers_of(held_out.scorer, log, prompts))
    model = study_model(WEIGHTS / profile.of.model, StudyRunSettings(max_batch=BATCH))
    reuses, full = profile.kind is ProfileKind.FEATURES, full_requests(model, prompts, held_out.log_seed * 10_000)
    return ThinningStudy(model, scorers, full, reuses_features=reuses)


def held_out_figures(profile: Profile, held_out: UnseenPrompts) -> Iterator[Figure]:
    """Yield the quality kept on prompts outside the profile, by the thinning of the fewest steps."""
    study = held_out_study(profile, held_out)
    fewest = min(allowed_options(profile, profile.conditions.step_count), key=lambda option: option.total)
    samples = study.samples(study.batch, fewest.first_step, fewest.taken_count, fewest.spacing)
    kept = sum(sample.keeps(profile.asked.alpha) for sample in samples)
    pairs = [(sample.quality, sample.full_quality) for sample in samples]
    what = f"{fewest.total} of {profile.conditions.step_count} steps, held-out prompts"
    name = f"{what}: share that keeps {profile.asked.alpha:g}"
    yield share(name, kept, len(samples), surely_above(0.95))
    name = f"{what}: pictures that keep less than {profile.asked.alpha:g}"
    yield counted(name, len(samples) - kept, len(samples), at_most(0.0))
    yield measured(f"{what}: quality kept in the mean", pairs, ratio_of_sums, informative())


if __name__ == "__main__":
    raise SystemExit(main())
