"""Compare the simulator with live runs: an emulated fleet of sixteen, and a small real one.

Each load is played open-loop on the live suite, and the same arrivals on the simulator. The simulator knows the fleet's
file (the real worker's profile), the dataplane's settings, and a request's time outside queues and devices, which is
measured in a separate run with another seed.

A real worker is slower in its suite than on the idle machine on which it was profiled. Its speed and the speed's
changes are measured in separate runs, one before each turn of `REAL_TURN_S` of a load (`seen_speed`). It is simulated
twice:

- The prediction uses nothing from the compared runs. It has the targets.
- The diagnosis also gets the share of the processors that the machine's host took during those runs, as the kernel
  counts it (`stolen_time`): it shows the host's part in the prediction's error. It has no target.

Violations count late, dropped and rejected requests. A simulated figure is the mean over `SIMULATIONS` seeds. Intervals
are over a real worker's rounds; an emulated fleet plays each load once, and has none.

Targets are DiffServe's averages between its simulator and its testbed (section 4.3), for the mean over a side's loads,
with the worst in the samples, and 5 % for latencies under each load.
"""

import argparse
import asyncio
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.parity_figures import DIAGNOSED, PREDICTED, ComparedLoad, OutcomeTally, figures
from benchmarks.seen_speed import ObservedRun, changes_seen, speed_seen, with_course, with_delays, with_speed
from benchmarks.stolen_time import StolenTime, WhatIsLeft
from benchmarks.suites.emulated import FLEETS, capacity_per_s, clients_of, emulated_suite, played, steady_load
from lab.emulation.fleet_file import read_fleet
from lab.runs import RequestRecord, make_report
from lab.runs.measure import Options, parse_options, publish
from lab.simulator import Scenario, Simulation
from lab.simulator.scenario_file import read_scenario
from lab.workloads import Workload
from pentimento.profiles.costs import costs_from_json
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.models import find_model

# in units of the fleet's capacity: chosen by simulation, so that about 5 to 40 % of the requests miss their SLOs
LOADS = (1.2, 1.3, 1.45, 1.6)
# Separate measurements use a middle load, so that processes are as busy as in the compared runs.
CALIBRATION_LOAD = 1.3
# an SLO in units of an image's time in a full batch
SLO_FACTOR = 2.0
SIMULATIONS = 9
CALIBRATION_SEED, FIRST_SEED = 1, 100
REAL_ROUNDS, REAL_TURN_S, REAL_CALIBRATION_S = 12, 20.0, 10.0
# A cascade that falls back to its light images misses no SLO: this one drops requests, as DiffServe's system does.
ENVIRONMENT = {"PENTIMENTO_FRONTDOOR_FALL_BACK": "false"}


@dataclass(frozen=True)
class Side:
    """Describe a compared live suite: its name, its start, and the simulator's knowledge of it."""

    name: str
    start: Callable[[], Any]
    fleet: Path
    model: str
    steps: int
    real: bool = False


@dataclass(frozen=True)
class Turn:
    """Hold a load that was played live once, and the simulator's knowledge of the suite then.

    `diagnosis` is the knowledge that includes that run; None without any.
    """

    share: float
    rate: float
    workload: Workload
    scenario: Scenario
    live: list[RequestRecord]
    diagnosis: Scenario | None = None


def main() -> int:
    options = parse_options("parity", __doc__, add_options)
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        pairs = [pair for side in sides(options, Path(folder)) for pair in compare(options, side, Path(folder))]
    return publish(
        options,
        figures(pairs),
        notes={"slo_factor": SLO_FACTOR, "duration_s": options.rest["duration"], "simulations": SIMULATIONS},
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fleet", type=Path, action="append", help="fleet files [heavy-16-half and cascade-16-half]")
    parser.add_argument("--model", default="tiny-heavy", help="of the small real run; '' for none")
    parser.add_argument("--real-only", action="store_true", help="no emulated fleets")
    parser.add_argument("--duration", type=float, default=100.0, help="seconds of a load on an emulated fleet")
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="loads, in units of the fleet's capacity")


def sides(options: Options, folder: Path) -> Iterator[Side]:
    fleets = (
        []
        if options.rest["real_only"]
        else options.rest["fleet"] or [FLEETS / "heavy-16-half.toml", FLEETS / "cascade-16-half.toml"]
    )
    for path in fleets[: 1 if options.quick else None]:
        fleet = read_fleet(path)
        heaviest = fleet.cascade[-1] if fleet.cascade else fleet.default_model
        start = partial(emulated_suite, path, environment=ENVIRONMENT)
        yield Side(path.stem, start, path, heaviest, fleet.model(heaviest).steps)
    if options.rest["model"]:
        yield real_side(options, folder)


def real_side(options: Options, folder: Path) -> Side:
    """Return one real worker, with its profile measured here, before the compared run."""
    model = find_model(options.rest["model"])
    profile = folder / "profile.json"
    flags = ["--model", str(model.path), "--out", str(profile), "--batch-sizes", "1,2,4,8", "--steps", "20"]
    repeats = "1" if options.quick else "10"
    subprocess.run(
        [sys.executable, "-m", "services.unet_worker.profiling", "cost", *flags, "--repeats", repeats], check=True
    )
    steps = costs_from_json(profile.read_text()).step_count
    fleet = folder / "real.toml"
    fleet.write_text(
        f'[[models]]\nname = "{model.name}"\nprofile = "{profile}"\nsteps = {steps}\n'
        f'[[devices]]\nname = "real"\ncount = 1\nmodels = ["{model.name}"]\n'
    )
    return Side(
        f"real {model.name}",
        partial(local_suite, ["--model", model.name, "--profiles", str(profile)]),
        fleet,
        model.name,
        steps,
        real=True,
    )


def compare(options: Options, side: Side, folder: Path) -> list[ComparedLoad]:
    """Play every load on one suite."""
    loads = options.rest["loads"][: 1 if options.quick else None]
    turns_of = real_turns if side.real else emulated_turns
    with started(side) as suite:
        turns = turns_of(options, suite, side, folder, loads)
    by_load = [[turn for turn in turns if turn.share == share] for share in loads]
    pairs = [pair(f"{side.name}, {PREDICTED}" if side.real else side.name, of_load) for of_load in by_load]
    if side.real:
        pairs += [pair(f"{side.name}, {DIAGNOSED}", diagnosed(of_load)) for of_load in by_load]
    for one in pairs:
        print(one.line(), flush=True)
    return pairs


def emulated_turns(options: Options, suite: LocalSuite, side: Side, folder: Path, loads: Sequence[float]) -> list[Turn]:
    """Play the run that measures the delays, then the compared ones."""
    duration_s = 8.0 if options.quick else float(options.rest["duration"])
    rate, slo_s = rate_and_slo(side)
    calibration = load(side, CALIBRATION_LOAD * rate, duration_s / 2, slo_s, CALIBRATION_SEED)
    scenario = with_delays(scenario_of(side, folder), run_live(suite, calibration, detailed=True))
    turns = []
    for number, share in enumerate(loads):
        workload = load(side, share * rate, duration_s, slo_s, FIRST_SEED + number)
        turns.append(Turn(share, share * rate, workload, scenario, run_live(suite, workload)))
    return turns


@dataclass(frozen=True)
class Timed:
    """Hold a live run, and the machine's time that its host left."""

    workload: Workload
    records: list[RequestRecord]
    left: WhatIsLeft

    def known_as(self, scenario: Scenario, *, told: bool) -> ObservedRun:
        """Return the run with the suite's scenario; `told` adds the host's share of the machine during the run."""
        return ObservedRun(with_course(scenario, self.left) if told else scenario, self.workload, self.records)


def real_turns(options: Options, suite: LocalSuite, side: Side, folder: Path, loads: Sequence[float]) -> list[Turn]:
    """Play the loads in sequence, many times, with a run before each that measures the speed.

    Arrivals and SLOs follow the last measured speed, so that a load stays constant while the host takes more or less.
    """
    rate, slo_s = rate_and_slo(side)
    known = scenario_of(side, folder)
    seeds = itertools.count(FIRST_SEED)
    calibrations: list[Timed] = []
    played: list[tuple[float, float, Timed]] = []

    def play(share: float, duration_s: float, *, detailed: bool) -> Timed:
        workload = load(side, share * rate * speed, duration_s, slo_s / speed, next(seeds))
        began_s = time.monotonic()
        records = run_live(suite, workload, detailed=detailed)
        return Timed(workload, records, stolen.left(began_s, time.monotonic()))

    def calibrate() -> float:
        one = play(CALIBRATION_LOAD, REAL_CALIBRATION_S, detailed=True)
        calibrations.append(one)
        return speed_seen(ObservedRun(with_delays(known, one.records), one.workload, one.records))

    with StolenTime() as stolen:
        speed = 1.0
        play(CALIBRATION_LOAD, REAL_CALIBRATION_S / 2, detailed=False)  # a suite's first images take longer
        for share in list(loads) * (1 if options.quick else REAL_ROUNDS):
            speed = calibrate()
            played.append((share, share * rate * speed, play(share, REAL_TURN_S, detailed=False)))
        print(f"stolen {stolen.share():.3f}", flush=True)
    prediction = known_speed(known, calibrations, told=False)
    diagnosis = known_speed(known, calibrations, told=True)
    return [
        Turn(share, asked, one.workload, prediction, one.records, one.known_as(diagnosis, told=True).scenario)
        for share, asked, one in played
    ]


def known_speed(known: Scenario, calibrations: Sequence[Timed], *, told: bool) -> Scenario:
    """Return the scenario with all calibrations' delays, speed, and changes of speed.

    Without `told`, the changes include the host's share; with it, they are the rest after the host's
    share.
    """
    scenario = with_delays(known, [record for one in calibrations for record in one.records])
    runs = [one.known_as(scenario, told=told) for one in calibrations]
    changes = changes_seen([replace(run, scenario=with_speed(run.scenario, speed_seen(run))) for run in runs])
    scenario = with_course(scenario, changes)
    speeds = [speed_seen(one.known_as(scenario, told=told)) for one in calibrations]
    print(f"told {told}: speeds {[round(speed, 3) for speed in speeds]}, {changes}", flush=True)
    return with_speed(scenario, statistics.geometric_mean(speeds))


def diagnosed(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns as the diagnosis knows them."""
    return [replace(turn, scenario=turn.diagnosis) for turn in turns if turn.diagnosis is not None]


@contextmanager
def started(side: Side) -> Iterator[LocalSuite]:
    with side.start() as suite:
        yield suite


def rate_and_slo(side: Side) -> tuple[float, float]:
    """Return the side's images per second, and its requests' SLO."""
    fleet = read_fleet(side.fleet)
    capacity = capacity_per_s(fleet, side.model)
    if fleet.cascade:
        # Only deferred requests reach the heavy model; the light one gets more by that factor.
        capacity /= share_deferred(fleet.deferral, fleet.confidence_threshold)
    model = fleet.model(side.model)
    devices = next(devices for devices in fleet.devices if devices.models[0] == side.model)
    batch = min(devices.max_batch, max(entry.batch_size for entry in model.profile.batches))
    step_s = model.profile.step_seconds(model.width_px, model.height_px, guided=model.guided, batch_size=batch)
    assert step_s is not None
    return capacity, SLO_FACTOR * model.steps * step_s / devices.speed


def share_deferred(curve: Sequence[tuple[float, float]], threshold: float) -> float:
    for (low, below), (high, above) in itertools.pairwise(curve):
        if low <= threshold <= high:
            return below + (above - below) * (threshold - low) / (high - low)
    raise ValueError(f"threshold {threshold} is not on the curve")


def load(side: Side, rate: float, duration_s: float, slo_s: float, seed: int) -> Workload:
    return steady_load(rate, duration_s, slo_s, seed, steps=side.steps)


def run_live(suite: LocalSuite, workload: Workload, *, detailed: bool = False) -> list[RequestRecord]:
    async def run() -> list[RequestRecord]:
        async with clients_of(suite, {"": ""}) as clients:
            return await played(workload, clients, detailed=detailed)

    return asyncio.run(run())


def pair(side: str, turns: Sequence[Turn]) -> ComparedLoad:
    rate = statistics.fmean(turn.rate for turn in turns)
    told = {"side": side, "rate_per_s": rate}
    live = [turn.live for turn in turns]
    runs = [
        [Simulation(turn.scenario, turn.workload, Random(seed)).run() for turn in turns] for seed in range(SIMULATIONS)
    ]
    return ComparedLoad(
        side,
        rate,
        make_report("live", list(itertools.chain(*live)), {"kind": "live", **told}),
        tuple(make_report("simulated", list(itertools.chain(*run)), {"kind": "simulated", **told}) for run in runs),
        [tuple(OutcomeTally.of(records) for records in of_turn) for of_turn in zip(live, *runs, strict=True)],
    )


def scenario_of(side: Side, folder: Path) -> Scenario:
    """Return the simulator's scenario of the suite without a policy: workers keep their models."""
    fleet = read_fleet(side.fleet)
    cascade = ", ".join(f'"{name}"' for name in fleet.cascade)
    path = folder / f"{side.fleet.stem}.scenario.toml"
    path.write_text(
        f'fleet = "{side.fleet.resolve()}"\npolicies = ["resident"]\ncascade = [{cascade}]\n'
        '[workload]\nkind = "poisson"\nrate = 1.0\nduration_s = 1.0\n'
        f"[dataplane]\nconfidence_threshold = {fleet.confidence_threshold}\nfall_back = false\n"
    )
    return read_scenario(path).scenarios[0]


if __name__ == "__main__":
    raise SystemExit(main())
