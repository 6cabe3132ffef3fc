"""Compare the simulator with live runs: an emulated fleet of sixteen, and real workers: one, and a cascade of four.

    python -m benchmarks.parity [--only emulated|worker|cascade]

Each load is played open-loop on the live suite, and the same arrivals on the simulator. The simulator knows the fleet's
file (the real worker's profile), the dataplane's settings, and a request's time outside queues and devices, which is
measured in a separate run with another seed.

A real worker is slower in its suite than on the idle machine on which it was profiled. Its speed and the speed's
changes are measured in separate runs, one before each turn of `REAL_TURN_S` of a load (`seen_speed`). It is simulated
twice:

- The prediction uses nothing from the compared runs. It has the targets.
- The diagnosis also gets the share of the processors that the machine's host took during those runs, as the kernel
  counts it (`stolen_time`): it shows the host's part in the prediction's error. It has no target.

The cascade (`parity_cascade`) has two workers of each model on shared processors, a real discriminator and the cache,
under a trace that changes fourfold. Its speeds are measured under the same trace with an SLO that drops nothing.

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

from benchmarks import parity_cascade
from benchmarks.parity_figures import DIAGNOSED, PREDICTED, ComparedLoad, OutcomeTally, figures
from benchmarks.seen_speed import ObservedRun, changes_seen, speeds_seen, with_course, with_delays, with_speeds
from benchmarks.stolen_time import StolenTime, WhatIsLeft
from benchmarks.suites.emulated import FLEETS, capacity_per_s, clients_of, emulated_suite, played, steady_load
from lab.emulation.fleet_file import read_fleet
from lab.runs import RequestRecord, make_report
from lab.runs.measure import Options, parse_options, publish
from lab.simulator import Scenario, Simulation
from lab.simulator.scenario_file import read_scenario
from lab.workloads import Workload
from pentimento.domain.image_request import CacheMode
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
# The cascade's trace. Its peak is 1.5 times the mean load.
CASCADE_LOADS, CASCADE_CALIBRATION_LOAD = (0.8, 0.95), 0.8
CASCADE_ROUNDS, CASCADE_TURN_S, CASCADE_CALIBRATION_S = 3, 45.0, 25.0
# times the SLO: nothing is dropped, so that every image's time counts
PATIENCE = 20.0
# A cascade that falls back to its light images misses no SLO: this one drops requests, as DiffServe's system does.
ENVIRONMENT = {"PENTIMENTO_FRONTDOOR_FALL_BACK": "false"}


@dataclass(frozen=True)
class Turns:
    """Describe how a real side's loads alternate: rounds, seconds of a load and of the run before it that measures the
    speed, and that run's load and SLO, in units of the others'."""

    rounds: int = REAL_ROUNDS
    load_s: float = REAL_TURN_S
    calibration_s: float = REAL_CALIBRATION_S
    calibration_load: float = CALIBRATION_LOAD
    patience: float = 1.0


@dataclass(frozen=True)
class Side:
    """Describe a compared live suite: its name, its start, and the simulator's knowledge of it.

    `turns`: of real workers, None for an emulated fleet. `log`: the prompts of a real cascade.
    """

    name: str
    start: Callable[[], Any]
    fleet: Path
    model: str
    steps: int
    loads: Sequence[float] = LOADS
    turns: Turns | None = None
    log: parity_cascade.TracedLog | None = None


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
    parser.add_argument("--only", choices=("emulated", "worker", "cascade"), help="this side alone")
    parser.add_argument("--fleet", type=Path, action="append", help="fleet files [heavy-16-half and cascade-16-half]")
    parser.add_argument("--model", default="tiny-heavy", help="of the one real worker")
    parser.add_argument("--duration", type=float, default=100.0, help="seconds of a load on an emulated fleet")
    parser.add_argument("--loads", type=float, nargs="+", help="loads, in units of the fleet's capacity")
    parser.add_argument("--rounds", type=int, default=CASCADE_ROUNDS, help="of the cascade's loads")


def sides(options: Options, folder: Path) -> Iterator[Side]:
    only = options.rest["only"]
    if only in (None, "emulated"):
        fleets = options.rest["fleet"] or [FLEETS / "heavy-16-half.toml", FLEETS / "cascade-16-half.toml"]
        for path in fleets[: 1 if options.quick else None]:
            fleet = read_fleet(path)
            heaviest = fleet.cascade[-1] if fleet.cascade else fleet.default_model
            start = partial(emulated_suite, path, environment=ENVIRONMENT)
            yield Side(path.stem, start, path, heaviest, fleet.model(heaviest).steps)
    if only in (None, "worker"):
        yield real_side(options, folder)
    if only in (None, "cascade"):
        yield cascade_side(options, folder)


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
        turns=Turns(1 if options.quick else REAL_ROUNDS),
    )


def cascade_side(options: Options, folder: Path) -> Side:
    """Return two workers of each model, with their costs and the confidences of their prompts measured here."""
    costs = parity_cascade.profiled(folder, "1" if options.quick else "5")
    flags = parity_cascade.suite_flags(folder, costs)
    rounds = 1 if options.quick else options.rest["rounds"]
    turns = Turns(rounds, CASCADE_TURN_S, CASCADE_CALIBRATION_S, CASCADE_CALIBRATION_LOAD, PATIENCE)
    fleet = parity_cascade.write_fleet(folder, costs)
    # The loads follow the measured speed; prompts may be left.
    seconds = turns.calibration_s + rounds * len(CASCADE_LOADS) * (turns.load_s + turns.calibration_s)
    most = round(max(CASCADE_LOADS) * parity_cascade.shared_capacity_per_s(read_fleet(fleet)) * seconds)
    log = parity_cascade.traced_log(most, FIRST_SEED, flags)
    start = partial(parity_cascade.started, [*flags, "--confidence-threshold", str(log.threshold)])
    return Side("real cascade", start, fleet, parity_cascade.HEAVY, 50, CASCADE_LOADS, turns, log)


def compare(options: Options, side: Side, folder: Path) -> list[ComparedLoad]:
    """Play every load on one suite."""
    loads = (options.rest["loads"] or side.loads)[: 1 if options.quick else None]
    with started(side) as suite:
        if side.turns is not None:
            turns = real_turns(suite, side, side.turns, scenario_of(side, folder), loads)
        else:
            turns = emulated_turns(options, suite, side, folder, loads)
    by_load = [[turn for turn in turns if turn.share == share] for share in loads]
    pairs = [pair(side.name if side.turns is None else f"{side.name}, {PREDICTED}", of_load) for of_load in by_load]
    if side.turns is not None and side.log is None:
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
    """Hold a live run, and the machine's time that its host left. `log`: the prompts of a real cascade."""

    workload: Workload
    records: list[RequestRecord]
    left: WhatIsLeft
    log: parity_cascade.TracedLog | None = None

    def known_as(self, scenario: Scenario, *, told: bool) -> ObservedRun:
        """Return the run with the suite's scenario; `told` adds the host's share of the machine during the run."""
        workload = self.workload if self.log is None else self.log.simulated(self.workload)
        known = parity_cascade.warmed(scenario, workload)
        return ObservedRun(with_course(known, self.left) if told else known, workload, self.records)


def real_turns(suite: LocalSuite, side: Side, asked: Turns, known: Scenario, loads: Sequence[float]) -> list[Turn]:
    """Play the loads in sequence, many times, with a run before each that measures the speed.

    Arrivals and SLOs follow the last measured speed, so that a load stays constant while the host takes more or less.
    """
    rate, slo_s = rate_and_slo(side)
    seeds = itertools.count(FIRST_SEED)
    calibrations: list[Timed] = []
    played: list[tuple[float, float, Timed]] = []

    def play(share: float, duration_s: float, *, patience: float = 1.0, detailed: bool = False) -> Timed:
        workload = load(side, share * rate * speed, duration_s, patience * slo_s / speed, next(seeds))
        began_s = time.monotonic()
        records = run_live(suite, workload, side.log, detailed=detailed)
        if side.log is not None and patience > 1.0:
            side.log.learn(workload, records)
        return Timed(workload, records, stolen.left(began_s, time.monotonic()), side.log)

    def calibrate() -> float:
        one = play(asked.calibration_load, asked.calibration_s, patience=asked.patience, detailed=True)
        calibrations.append(one)
        speeds = speeds_seen(one.known_as(with_delays(known, one.records), told=False))
        print(f"speeds {speeds}", flush=True)
        return statistics.geometric_mean(speeds.values())

    with StolenTime() as stolen:
        speed = 1.0
        # A suite's first images take longer.
        play(asked.calibration_load, asked.calibration_s / 2, patience=asked.patience)
        for share in list(loads) * asked.rounds:
            speed = calibrate()
            played.append((share, share * rate * speed, play(share, asked.load_s)))
        print(f"stolen {stolen.share():.3f}", flush=True)
    if side.log is not None:
        side.log.probe(one.workload for *_, one in played)
    prediction = known_speed(known, calibrations, told=False)
    diagnosis = known_speed(known, calibrations, told=True) if side.log is None else None
    turns = []
    for share, asked_per_s, one in played:
        run = one.known_as(prediction, told=False)
        told = one.known_as(diagnosis, told=True).scenario if diagnosis is not None else None
        turns.append(Turn(share, asked_per_s, run.workload, run.scenario, one.records, told))
    return turns


def known_speed(known: Scenario, calibrations: Sequence[Timed], *, told: bool) -> Scenario:
    """Return the scenario with all calibrations' delays, qualities, speeds, and changes of speed.

    Without `told`, the changes include the host's share; with it, they are the rest after the host's
    share.
    """
    records = [record for one in calibrations for record in one.records]
    scenario = parity_cascade.with_qualities(with_delays(known, records), records)
    runs = [one.known_as(scenario, told=told) for one in calibrations]
    changes = changes_seen([replace(run, scenario=with_speeds(run.scenario, speeds_seen(run))) for run in runs])
    scenario = with_course(scenario, changes)
    speeds = [speeds_seen(one.known_as(scenario, told=told)) for one in calibrations]
    print(f"told {told}: speeds {speeds}, {changes}", flush=True)
    return with_speeds(
        scenario, {model: statistics.geometric_mean(one[model] for one in speeds) for model in speeds[0]}
    )


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
    if side.log is not None:
        capacity = parity_cascade.shared_capacity_per_s(fleet)
    elif fleet.cascade:
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
    if side.log is not None:
        return side.log.workload(rate, duration_s, slo_s, seed)
    return steady_load(rate, duration_s, slo_s, seed, steps=side.steps)


def run_live(
    suite: LocalSuite, workload: Workload, log: parity_cascade.TracedLog | None = None, *, detailed: bool = False
) -> list[RequestRecord]:
    async def run() -> list[RequestRecord]:
        async with clients_of(suite, {"": ""}) as clients:
            if log is None:
                return await played(workload, clients, detailed=detailed)
            return await played(workload, clients, detailed=detailed, cache=CacheMode.READ_WRITE, score=log.keep)

    records = asyncio.run(run())
    return log.scored(workload, records) if log is not None else records


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
    scenario = read_scenario(path).scenarios[0]
    return scenario if side.log is None else parity_cascade.with_cascade(scenario, side.log)


if __name__ == "__main__":
    raise SystemExit(main())
