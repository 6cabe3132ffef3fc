"""Size a fleet of up to 300 devices by the controller's scaler, by utilisation, and by queue length, on five traces.

MoDM's large model on A40s: 60 s an image, an SLO of twice that, one image at a time. The lab's simulator runs the live
dataplane; a new device serves after START_S, a removed one finishes its image first, and both count as device time. All
scalers run behind the same HorizontalPodAutoscaler: a look every 15 s, a tolerance of 10 %, at most ten times as many
pods a look, the same start and limits. Peers: the HPA on the devices' utilisation, and KEDA on the requests that wait
or run, each with several targets, and with the HPA's window of scaling down, which the scaler's dwell equals. The
scaler has its defaults everywhere; its constants were chosen in a simpler model of the traces, both halves in sight.

The second halves are scored. Saved device time is that at equal violations over all traces: a peer's device time is
interpolated between its settings of least device time around the scaler's violations, on the scored halves. The bound
is what no scaler can undercut at the scaler's violations, even with knowledge of the future (`scaling_bound`).

A violation is a request that is rejected, dropped or answered after its SLO. Of each trace --seeds draws are played:
other requests of a log, other arrivals of a shape. Sensitivity: another start time, one draw, nothing chosen again.

    python -m benchmarks.autoscale_sim --data DIR

DIR has arrivals/ and gentd26/ of public logs (docs/benchmarks.md); `--processes` runs simulate at the same time.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.papers.constants import A40_SECONDS
from benchmarks.papers.systems import one_at_a_time
from benchmarks.scaling_bound import BoundedFleet, least_device_h
from lab.planners.registry import POLICIES
from lab.runs.intervals import paired_ratio, paired_ratio_interval
from lab.runs.measure import Figure, Interval, Notes, at_least, informative, parse_options, publish, share
from lab.simulator.scaling import (
    ByController,
    ByQueueLength,
    ByUtilisation,
    FleetSizer,
    ScaledSimulation,
    ScalingLimits,
)
from lab.simulator.scenario import Scenario, SimulatedDevices, SimulatedModel
from lab.workloads import Content, Segment, SloClass, Workload, fluctuating, from_trace
from lab.workloads.readers import read_azure_times, read_mooncake, read_production_requests
from lab.workloads.times import Times
from pentimento.dataplane import DataplaneSettings
from pentimento.policies.plan.settings import ServingSettings
from pentimento.policies.replica_counts import DWELL_S

MODEL, DEVICES = "large", 300
RUN_S = A40_SECONDS[MODEL]
SLO_S = 2 * RUN_S
START_S, OTHER_STARTS_S = 90.0, (180.0,)
TRACE_S = 3_600.0
# Mean requests a second, so that the busiest minute needs most of the devices.
RATES = {"azure": 2.0, "mooncake": 1.6, "gentd26": 0.9, "day": 1.5, "bursts": 1.0}
# Targets and windows in seconds of the peers: the HPA's own window is 300 s.
SETTINGS = {
    "utilisation": ((0.3, 300.0), (0.4, 300.0), (0.5, 300.0), (0.6, 300.0)),
    "queue": ((0.5, 300.0), (0.6, 300.0), (0.7, 300.0), (0.8, 300.0), (1.0, 300.0)),
}
# The share of device time that is to be saved.
SAVED = 0.25


@dataclass(frozen=True)
class ScalerSetting:
    """Name a scaler: ours, utilisation or queue; with a peer's target and window."""

    kind: str
    target: float = 0.0
    window_s: float = 0.0

    def scaler(self, start_s: float) -> FleetSizer:
        if self.kind == "ours":
            return ByController(MODEL, SLO_S, DWELL_S, start_s)
        return ByUtilisation(self.target) if self.kind == "utilisation" else ByQueueLength(self.target)


@dataclass(frozen=True)
class ScaledRun:
    """Store what became of one trace, or of several together."""

    request_count: int
    violation_count: int
    device_h: float

    def __add__(self, other: "ScaledRun") -> "ScaledRun":
        return ScaledRun(
            self.request_count + other.request_count,
            self.violation_count + other.violation_count,
            self.device_h + other.device_h,
        )

    @property
    def violations(self) -> float:
        """Return the share of the requests."""
        return self.violation_count / self.request_count


Halves = tuple[ScaledRun, ScaledRun]
Job = tuple[ScalerSetting, str, int, float]
"""A scaler, a trace, the seed of its draw, and the seconds of a start."""

# The first halves of runs, on which settings were chosen, and the second ones.
FITTED, SCORED = (0,), (1,)
OURS = ScalerSetting("ours")
PEERS = {kind: [ScalerSetting(kind, *one) for one in settings] for kind, settings in SETTINGS.items()}


def content() -> Content:
    return Content(slo_classes=(SloClass("standard", SLO_S),), steps=50)


def recorded(name: str, times_s: Times, trace_s: float, seed: int) -> Workload:
    """Return a draw of a recorded trace in `trace_s` seconds, at its mean rate."""
    length_s = float(times_s[-1] - times_s[0])
    rate = RATES[name]
    scale = rate * trace_s / len(times_s)
    return from_trace(
        times_s, np.random.default_rng(seed), content(), scale=scale, compress=length_s / trace_s, source=name
    )


def day(trace_s: float, seed: int) -> Workload:
    """Return a day's course in `trace_s` seconds: a sine from a tenth of the peak to the peak."""
    shape = [0.55 - 0.45 * math.cos(2 * math.pi * number / 240) for number in range(240)]
    return drawn("day", shape, trace_s, seed)


def bursts(trace_s: float, seed: int) -> Workload:
    """Return a low rate with bursts of seven times as much, on average five minutes long and every twenty."""
    draws, shape, left, high = Random(6 + seed), [], 0.0, True
    for _ in range(240):
        if left <= 0.0:
            high = not high
            left = draws.expovariate(1 / (300.0 if high else 900.0)) * 240 / TRACE_S
        shape.append(7.0 if high else 1.0)
        left -= 1.0
    return drawn("bursts", shape, trace_s, seed)


def drawn(name: str, shape: Sequence[float], trace_s: float, seed: int) -> Workload:
    """Return Poisson arrivals of that shape at the trace's mean rate."""
    unit = RATES[name] / float(np.mean(shape))
    segments = [Segment(trace_s / len(shape), unit * value) for value in shape]
    return fluctuating(np.random.default_rng(seed), content(), segments)


@cache
def trace(name: str, seed: int, data: Path, trace_s: float) -> Workload:
    if name in DRAWN:
        return DRAWN[name](trace_s, seed)
    return recorded(name, RECORDED[name](data), trace_s, seed)


DRAWN = {"day": day, "bursts": bursts}
RECORDED: dict[str, Callable[[Path], Times]] = {
    "azure": lambda data: read_azure_times(data / "arrivals" / "azure_llm_2023_conv.csv.gz"),
    "mooncake": lambda data: np.array(
        [one.at_s for one in read_mooncake(data / "arrivals" / "mooncake_conversation.jsonl.gz")]
    ),
    "gentd26": lambda data: np.array(
        [one.at_s for one in read_production_requests(data / "gentd26" / "requests_timed_first16days.csv.gz")]
    ),
}


def play(job: Job, data: Path, trace_s: float) -> Halves:
    """Simulate a draw of a trace with one scaler and one start time."""
    setting, name, seed, start_s = job
    workload = trace(name, seed, data, trace_s)
    first_s = min(600.0, trace_s)
    begun = sum(arrival.at_s < first_s for arrival in workload.arrivals)
    first = min(max(math.ceil(begun / first_s * RUN_S / 0.8), 1), DEVICES)
    scenario = Scenario(
        setting.kind,
        (SimulatedModel(one_at_a_time(MODEL, RUN_S)),),
        (SimulatedDevices(DEVICES, MODEL),),
        POLICIES["resident"](ServingSettings(MODEL)),
        dataplane=DataplaneSettings(queue_limit=100_000),
        default_model=MODEL,
    )
    limits = ScalingLimits(first, DEVICES, start_s)
    simulation = ScaledSimulation(scenario, workload, Random(1), setting.scaler(start_s), limits, setting.window_s)
    records = simulation.run()
    half_s = trace_s / 2
    parts = [[one for one in records if (one.arrived_s >= half_s) == later] for later in (False, True)]
    first_pod_s, pod_s = simulation.pod_s_until(half_s), simulation.finish()
    spent_s = (first_pod_s, pod_s - first_pod_s)
    early, late = (
        ScaledRun(len(part), sum(one.outcome.violation for one in part), seconds / 3600.0)
        for part, seconds in zip(parts, spent_s, strict=True)
    )
    return early, late


def best(found: dict[ScalerSetting, ScaledRun], most: ScaledRun) -> ScalerSetting:
    """Return the peer's setting with the least device time of the settings with no more violations than `most`; if none
    has, the one with the fewest violations."""
    allowed = {one: played for one, played in found.items() if played.violation_count <= most.violation_count}
    if not allowed:
        return min(found, key=lambda one: found[one].violation_count)
    return min(allowed, key=lambda one: allowed[one].device_h)


def hours_at(found: Iterable[ScaledRun], violation_count: int) -> float | None:
    """Return a peer's device hours at that many violations, on the straight line between its cheapest settings with
    fewer and with more; None if no setting has fewer, or none more."""
    front: list[tuple[int, float]] = []
    for one in sorted(found, key=lambda one: (one.violation_count, one.device_h)):
        if not front or one.device_h < front[-1][1]:
            front.append((one.violation_count, one.device_h))
    for (fewer, dear), (more, cheap) in itertools.pairwise(front):
        if fewer <= violation_count <= more:
            return dear + (cheap - dear) * (violation_count - fewer) / (more - fewer)
    return None


class ScalerRuns:
    """Hold the runs of a benchmark, and add them up over traces and draws."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = seeds
        self.runs: dict[Job, Halves] = {}

    def total(
        self,
        setting: ScalerSetting,
        *,
        names: Iterable[str] = tuple(RATES),
        seeds: Iterable[int] = (),
        start_s: float = START_S,
        halves: Collection[int] = SCORED,
    ) -> ScaledRun:
        """Return the sum of the scored halves, or of others, of all draws by default."""
        jobs = itertools.product((setting,), names, seeds or self.seeds, (start_s,))
        return sum((self.runs[job][half] for job in jobs for half in halves), ScaledRun(0, 0, 0.0))

    def chosen(self, kind: str) -> ScalerSetting:
        """Return a peer's best setting on the first halves."""
        found = {one: self.total(one, halves=FITTED) for one in PEERS[kind]}
        return best(found, self.total(OURS, halves=FITTED))

    def saved(self, kind: str, halves: Collection[int] = SCORED) -> tuple[float | None, Interval | None]:
        """Return the share of a peer's device time saved at equal violations, the mean of the draws, with its
        interval."""
        pairs = []
        for seed in self.seeds:
            ours = self.total(OURS, seeds=[seed], halves=halves)
            peers = [self.total(one, seeds=[seed], halves=halves) for one in PEERS[kind]]
            if (hours := hours_at(peers, ours.violation_count)) is None:
                return None, None
            pairs.append((ours.device_h, hours))
        if len(pairs) < 2:
            return 1.0 - paired_ratio(pairs), None
        low, high = paired_ratio_interval(pairs)
        return 1.0 - paired_ratio(pairs), Interval(1.0 - high, 1.0 - low, "Student's t over draws")


def bound_h(seeds: Iterable[int], violation_counts: Iterable[int], data: Path, trace_s: float) -> float:
    """Return the least device hours of the scored halves of all draws."""
    fleet = BoundedFleet(RUN_S, SLO_S, START_S, DEVICES)
    half_s = trace_s / 2
    return sum(
        least_device_h(
            [
                [one.at_s - half_s for one in trace(name, seed, data, trace_s).arrivals if one.at_s >= half_s]
                for name in RATES
            ],
            half_s,
            count,
            fleet,
        )
        for seed, count in zip(seeds, violation_counts, strict=True)
    )


def main() -> int:
    options = parse_options("autoscale_sim", __doc__, add_options)
    trace_s = TRACE_S / 8 if options.quick else TRACE_S
    played = ScalerRuns(range(1, 2 if options.quick else options.rest["seeds"] + 1))
    simulate = partial(play, data=options.rest["data"], trace_s=trace_s)
    with ProcessPoolExecutor(options.rest["processes"]) as pool:

        def run(settings: Iterable[ScalerSetting], seeds: Iterable[int], start_s: float = START_S) -> None:
            jobs = list(itertools.product(settings, RATES, seeds, [start_s]))
            for job, found in zip(jobs, pool.map(simulate, jobs), strict=True):
                played.runs[job] = found
                print(*job, *found, flush=True)

        run([OURS, *itertools.chain(*PEERS.values())], played.seeds)
        chosen = {kind: played.chosen(kind) for kind in PEERS}
        for start_s in OTHER_STARTS_S:
            run([OURS, *chosen.values()], played.seeds[:1], start_s)
    counts = [played.total(OURS, seeds=[seed]).violation_count for seed in played.seeds]
    figures = [
        *figures_of(played, chosen),
        *bounds_of(played, bound_h(played.seeds, counts, options.rest["data"], trace_s)),
    ]
    notes: Notes = {
        "start_s": START_S,
        "trace_s": trace_s,
        "draws": len(played.seeds),
        "settings": ", ".join(f"{kind} {one.target:g}, {one.window_s:g} s" for kind, one in chosen.items()),
        "scaler": f"defaults, dwell {DWELL_S:g} s",
    }
    return publish(options, figures, notes=notes)


def figures_of(played: ScalerRuns, chosen: Mapping[str, ScalerSetting]) -> Iterator[Figure]:
    for halves, title in ((SCORED, "second halves"), (FITTED + SCORED, "whole")):
        for kind in chosen:
            value, interval = played.saved(kind, halves)
            name = f"device hours saved against {kind} at equal violations, five traces, {title}"
            yield Figure(name, value, at_least(SAVED), len(played.seeds), interval)
    for one in (*chosen.values(), OURS):
        total = played.total(one)
        yield share(f"{one.kind}: violations, share", total.violation_count, total.request_count, informative())
        yield Figure(f"{one.kind}: device hours", total.device_h, informative("h"))
    parts = [(name, [name], START_S, played.seeds) for name in RATES]
    parts += [(f"start of {start_s:g} s", list(RATES), start_s, played.seeds[:1]) for start_s in OTHER_STARTS_S]
    for (title, names, start_s, seeds), (kind, one) in itertools.product(parts, chosen.items()):
        mine, theirs = (played.total(each, names=names, seeds=seeds, start_s=start_s) for each in (OURS, one))
        yield Figure(f"{title}: saved against {kind}", 1.0 - mine.device_h / theirs.device_h, informative())
        more = mine.violations - theirs.violations
        yield Figure(f"{title}: violations more than {kind}", more, informative(), mine.request_count)


def bounds_of(played: ScalerRuns, least_h: float) -> Iterator[Figure]:
    """Report the device time of a scaler that knows the future, and what it would save against queue length."""
    ours = played.total(OURS)
    yield Figure("bound: device hours of any scaler at ours' violations", least_h, informative("h"))
    yield Figure("device hours ÷ the bound", ours.device_h / least_h, informative())
    value, _ = played.saved("queue")
    most = None if value is None else 1.0 - (1.0 - value) * least_h / ours.device_h
    yield Figure("saved against queue by the bound", most, informative())


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="directory with arrivals/ and gentd26/")
    parser.add_argument("--seeds", type=int, default=1, help="draws of each trace")
    parser.add_argument("--processes", type=int, default=2, help="simulations at the same time")


if __name__ == "__main__":
    raise SystemExit(main())
