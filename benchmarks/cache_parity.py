"""Compare the simulator's cache with the live one on the same log: share of hits, and the steps that they save.

    python -m benchmarks.cache_parity [--count 1500]

Live: `pentimento up --emulate` with the real frontdoor, embedder (tiny-clip), gateway and objects; devices sleep, since
only requests' starts are compared. Simulated: the same arrivals by the same selector, with the delays of a separate
live run without the cache. The log is a synthetic scene log: a prompt's hit depends on which of the prompts a few
seconds before it were committed by then.

The largest difference in percentage points is over the share of hits and over the share of requests at each K.
"""

import argparse
import asyncio
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.seen_speed import with_delays
from benchmarks.suites.emulated import clients_of, emulated_suite
from lab.runs import RequestRecord, StartKind
from lab.runs.load import LoadSettings, play
from lab.runs.measure import Figure, at_most, informative, measured, parse_options, publish
from lab.simulator import Scenario, Simulation
from lab.simulator.cache import CacheSettings
from lab.simulator.scenario_file import read_scenario
from lab.workloads import SloClass, Workload, poisson
from pentimento.domain.image_request import CacheMode
from pentimento.policies.cache_selection import (
    NIRVANA_LATENT_THRESHOLDS,
    RENOISED_SHARE,
    RETAKEN_SHARE,
    SelectionRules,
    renoising_of,
    skipped_steps,
)
from pentimento.policies.plan.registry import CacheUse
from pentimento.supervisor.local import LocalSuite
from zoo.registry import WEIGHTS
from zoo.scene_log import clip_embedder, write_scene_log

STEPS = 50
FLEET = """seed = 1
batching = "steps"
cache = true

[[models]]
name = "sd15"
steps = 50
guidance_scale = 7.5
latency_s = { 1 = 1.78, 2 = 2.16, 4 = 3.68, 8 = 6.79 }
variation = 0.05

[[devices]]
name = "a100"
count = 4
speed = 2.0
models = ["sd15"]
max_batch = 4
"""
SCENARIO = """fleet = "{fleet}"
policies = ["resident"]
[workload]
kind = "poisson"
rate = 1.0
duration_s = 1.0
"""
# requests per second: half of the devices' capacity without the cache
RATE = 4.0
SLO_S = 60.0
CALIBRATION_COUNT = 200
SIMULATIONS = 5
# The gateway's defaults: another seed's latent is noised again.
RULES = SelectionRules(renoised_share=RENOISED_SHARE, retaken_share=RETAKEN_SHARE)
# the steps that each K saves
KINDS = (
    0,
    *(
        step - renoising_of(step, RULES).retaken_steps
        for step in (skipped_steps(rule, STEPS) for rule in NIRVANA_LATENT_THRESHOLDS)
    ),
)


def log_of(count: int, seed: int) -> Workload:
    """Return a scene log with its embeddings, arriving at random times."""
    rng = np.random.default_rng(seed)
    log = write_scene_log(count, clip_embedder(WEIGHTS / "tiny-clip"), rng)
    content = log.content(slo_classes=(SloClass("standard", SLO_S),), tenants={"default": 1.0}, steps=STEPS)
    return poisson(RATE, 2 * count / RATE, rng, content).first(count)


def live(suite: LocalSuite, workload: Workload, cache: CacheMode, *, detailed: bool = False) -> list[RequestRecord]:
    async def run() -> list[RequestRecord]:
        async with clients_of(suite, {"": ""}) as clients:
            return await play(workload, clients, LoadSettings(cache=cache, detailed_stages=detailed))

    return asyncio.run(run())


def scenario_of(folder: Path, fleet: Path) -> Scenario:
    """Return the simulator's scenario of the suite, with NIRVANA's use of the cache and unlimited capacity."""
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.format(fleet=fleet))
    known = read_scenario(path).scenarios[0]
    policy = replace(known.policy, cache=CacheUse.LATENTS, cache_hits=False)
    return replace(known, policy=policy, cache=CacheSettings(capacity=10**9, rules=RULES))


def starts_of(records: Sequence[RequestRecord]) -> list[int]:
    """Return each answered request's starting step; 0 for noise."""
    ordered = sorted(records, key=lambda record: record.arrived_s)
    return [record.start_step if record.start is StartKind.LATENT else 0 for record in ordered]


def shares(starts: Sequence[int]) -> dict[int, float]:
    """Return the percentage of requests at each step."""
    counts = Counter(starts)
    return {step: 100.0 * counts[step] / len(starts) for step in KINDS}


def largest_difference(pairs: Sequence[tuple[int, Sequence[int]]]) -> float:
    """Return the largest difference in points, of the mean simulation from the live run; a pair is one request."""
    real = shares([one for one, _ in pairs])
    runs = [shares(list(run)) for run in zip(*(simulated for _, simulated in pairs), strict=True)]
    return max(abs(real[step] - statistics.fmean(run[step] for run in runs)) for step in KINDS)


def compare(count: int, calibration: int) -> list[Figure]:
    workload, other = log_of(count, 1), log_of(calibration, 2)
    with tempfile.TemporaryDirectory(prefix="cache-parity") as folder:
        fleet = Path(folder) / "fleet.toml"
        fleet.write_text(FLEET)
        with emulated_suite(fleet) as suite:
            delayed = with_delays(scenario_of(Path(folder), fleet), live(suite, other, CacheMode.OFF, detailed=True))
            real = live(suite, workload, CacheMode.READ_WRITE)
    simulated = [Simulation(delayed, workload, Random(seed)).run() for seed in range(SIMULATIONS)]
    runs = [starts_of(records) for records in simulated]
    pairs = list(zip(starts_of(real), zip(*runs, strict=True), strict=True))
    hits = [(bool(one), [bool(other) for other in others]) for one, others in pairs]
    figures = [
        measured("largest difference of a share, in points", pairs, largest_difference, at_most(1.0, "points")),
        measured("difference of the shares of hits", hits, _hit_difference, at_most(1.0, "points")),
        measured("live: share of hits", [one for one, _ in hits], _percent, informative("%")),
        measured("simulated: share of hits", [hit for _, of in hits for hit in of], _percent, informative("%")),
    ]
    return figures


def _hit_difference(hits: Sequence[tuple[bool, Sequence[bool]]]) -> float:
    simulated = statistics.fmean(statistics.fmean(others) for _, others in hits)
    return 100.0 * abs(statistics.fmean(one for one, _ in hits) - simulated)


def _percent(flags: Sequence[bool]) -> float:
    return 100.0 * statistics.fmean(flags)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=1_500, help="requests of the log")


def main() -> int:
    options = parse_options("cache_parity", __doc__, add_options)
    count, calibration = (120, 60) if options.quick else (options.rest["count"], CALIBRATION_COUNT)
    notes = {"requests": count, "rate_per_s": RATE, "simulations": SIMULATIONS}
    return publish(options, compare(count, calibration), notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
