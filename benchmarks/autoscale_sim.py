"""Size a fleet of up to 300 devices by the controller's scaler, by utilisation, and by queue length, on five traces.

MoDM's large model on A40s: 60 s an image, an SLO of twice that, one image at a time. The lab's simulator runs the live
dataplane; a new device serves after START_S, a removed one finishes its image first, and both count as device time. All
scalers run behind the same HorizontalPodAutoscaler: a look every 15 s, a tolerance of 10 %, at most ten times as many
pods a look, the same start and limits. Peers: the HPA on the devices' utilisation, and KEDA on the requests that wait
or run. Their targets are searched, with the HPA's window of scaling down (300 s), then the best one and the next lower
one with a window of 60 s. The scaler has its defaults everywhere. Saved device time is that at equal violations over
all traces: a peer's device time is interpolated between its cheapest settings around the scaler's violations.

A violation is a request that is rejected, dropped or answered after its SLO. Sensitivity: other start times, which the
peers' targets are not searched for again.

    python -m benchmarks.autoscale_sim --data DIR

DIR has arrivals/ and gentd26/ of public logs (docs/benchmarks.md); `--processes` runs simulate at the same time.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.papers.constants import A40_SECONDS
from benchmarks.papers.systems import one_at_a_time
from lab.planners.registry import POLICIES
from lab.runs.measure import Figure, Notes, at_least, informative, parse_options, publish
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
TARGETS = {"utilisation": (0.5, 0.6, 0.7), "queue": (0.7, 0.8, 0.9)}
# The HPA's own window, and a shorter one.
WINDOW_S, SHORT_WINDOW_S = 300.0, 60.0
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


OURS = ScalerSetting("ours")
PEERS = {kind: [ScalerSetting(kind, one, WINDOW_S) for one in targets] for kind, targets in TARGETS.items()}


def closer(chosen: ScalerSetting) -> list[ScalerSetting]:
    """Return the settings with a short window around the best one with the HPA's own."""
    lower = max((one for one in TARGETS[chosen.kind] if one < chosen.target), default=chosen.target - 0.1)
    return [ScalerSetting(chosen.kind, one, SHORT_WINDOW_S) for one in (chosen.target, lower)]


def content() -> Content:
    return Content(slo_classes=(SloClass("standard", SLO_S),), steps=50)


def recorded(name: str, times_s: Times, trace_s: float) -> Workload:
    """Return a recorded trace in `trace_s` seconds, at its mean rate."""
    length_s = float(times_s[-1] - times_s[0])
    rate = RATES[name]
    scale = rate * trace_s / len(times_s)
    return from_trace(
        times_s, np.random.default_rng(1), content(), scale=scale, compress=length_s / trace_s, source=name
    )


def day(trace_s: float) -> Workload:
    """Return a day's course in `trace_s` seconds: a sine from a tenth of the peak to the peak."""
    shape = [0.55 - 0.45 * math.cos(2 * math.pi * number / 240) for number in range(240)]
    return drawn("day", shape, trace_s)


def bursts(trace_s: float) -> Workload:
    """Return a low rate with bursts of seven times as much, on average five minutes long and every twenty."""
    draws, shape, left, high = Random(7), [], 0.0, True
    for _ in range(240):
        if left <= 0.0:
            high = not high
            left = draws.expovariate(1 / (300.0 if high else 900.0)) * 240 / TRACE_S
        shape.append(7.0 if high else 1.0)
        left -= 1.0
    return drawn("bursts", shape, trace_s)


def drawn(name: str, shape: Sequence[float], trace_s: float) -> Workload:
    """Return Poisson arrivals of that shape at the trace's mean rate."""
    unit = RATES[name] / float(np.mean(shape))
    segments = [Segment(trace_s / len(shape), unit * value) for value in shape]
    return fluctuating(np.random.default_rng(1), content(), segments)


@cache
def trace(name: str, data: Path, trace_s: float) -> Workload:
    read: dict[str, Callable[[], Workload]] = {
        "azure": lambda: recorded(name, read_azure_times(data / "arrivals" / "azure_llm_2023_conv.csv.gz"), trace_s),
        "mooncake": lambda: recorded(
            name,
            np.array([one.at_s for one in read_mooncake(data / "arrivals" / "mooncake_conversation.jsonl.gz")]),
            trace_s,
        ),
        "gentd26": lambda: recorded(
            name,
            np.array(
                [one.at_s for one in read_production_requests(data / "gentd26" / "requests_timed_first16days.csv.gz")]
            ),
            trace_s,
        ),
        "day": lambda: day(trace_s),
        "bursts": lambda: bursts(trace_s),
    }
    return read[name]()


def play(job: tuple[ScalerSetting, str, float], data: Path, trace_s: float) -> ScaledRun:
    """Simulate one trace with one scaler and one start time."""
    setting, name, start_s = job
    workload = trace(name, data, trace_s)
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
    late = sum(record.outcome.violation for record in records)
    return ScaledRun(len(records), late, simulation.finish() / 3600.0)


def best(found: dict[ScalerSetting, ScaledRun], most: ScaledRun) -> ScalerSetting:
    """Return the peer's setting with the least device time among those with no more violations than `most`; if there is
    none, the one with the fewest violations."""
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


def main() -> int:
    options = parse_options("autoscale_sim", __doc__, add_options)
    trace_s = TRACE_S / 8 if options.quick else TRACE_S
    names = list(RATES)
    simulate = partial(play, data=options.rest["data"], trace_s=trace_s)
    played: dict[tuple[ScalerSetting, str, float], ScaledRun] = {}
    total: dict[ScalerSetting, ScaledRun] = {}
    with ProcessPoolExecutor(options.rest["processes"]) as pool:

        def run(settings: Sequence[ScalerSetting], start_s: float = START_S) -> None:
            jobs = [(one, name, start_s) for one in settings for name in names]
            for job, found in zip(jobs, pool.map(simulate, jobs), strict=True):
                played[job] = found
                print(*job, found, flush=True)

        def chosen_of(settings: Sequence[ScalerSetting]) -> ScalerSetting:
            total.update({one: add(played[one, name, START_S] for name in names) for one in settings})
            return best({one: total[one] for one in settings}, total[OURS])

        run([OURS])
        chosen_of([OURS])
        chosen = {}
        for kind, peers in PEERS.items():
            run(peers)
            more = closer(chosen_of(peers))
            run(more)
            chosen[kind] = chosen_of([*peers, *more])
        for start_s in OTHER_STARTS_S:
            run([OURS, *chosen.values()], start_s)
    for one, found in total.items():
        print(f"{one}: {found.device_h:.1f} device hours, {found.violations:.4f} violations")
    figures = figures_of(played, total, chosen, names)
    notes: Notes = {
        "start_s": START_S,
        "trace_s": trace_s,
        "requests": total[OURS].request_count,
        "settings": ", ".join(f"{kind} {one.target:g}, {one.window_s:g} s" for kind, one in chosen.items()),
        "scaler": f"defaults, dwell {DWELL_S:g} s",
    }
    return publish(options, figures, notes=notes)


def add(found: Iterable[ScaledRun]) -> ScaledRun:
    return sum(found, ScaledRun(0, 0, 0.0))


def figures_of(
    played: dict[tuple[ScalerSetting, str, float], ScaledRun],
    total: dict[ScalerSetting, ScaledRun],
    chosen: dict[str, ScalerSetting],
    names: Sequence[str],
) -> list[Figure]:
    def over(one: ScalerSetting, start_s: float = START_S) -> ScaledRun:
        return add(played[one, name, start_s] for name in names)

    ours, figures = total[OURS], []
    for kind in chosen:
        peers = [found for one, found in total.items() if one.kind == kind]
        hours = hours_at(peers, ours.violation_count)
        saved = 1.0 - ours.device_h / hours if hours is not None else None
        name = f"device hours saved against {kind} at equal violations, five traces"
        figures.append(Figure(name, saved, at_least(SAVED), len(peers)))
    for one in (*chosen.values(), OURS):
        figures.append(Figure(f"{one.kind}: violations, share", total[one].violations, informative()))
        figures.append(Figure(f"{one.kind}: device hours", total[one].device_h, informative("h")))
    for name, (kind, one) in itertools.product(names, chosen.items()):
        mine, theirs = played[OURS, name, START_S], played[one, name, START_S]
        figures.append(Figure(f"{name}: saved against {kind}", 1.0 - mine.device_h / theirs.device_h, informative()))
        more = mine.violations - theirs.violations
        figures.append(Figure(f"{name}: violations more than {kind}", more, informative(), mine.request_count))
    for start_s, (kind, one) in itertools.product(OTHER_STARTS_S, chosen.items()):
        mine, theirs = over(OURS, start_s), over(one, start_s)
        name = f"start of {start_s:g} s: saved against {kind}"
        figures.append(Figure(name, 1.0 - mine.device_h / theirs.device_h, informative()))
        name = f"start of {start_s:g} s: violations more than {kind}"
        figures.append(Figure(name, mine.violations - theirs.violations, informative()))
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="directory with arrivals/ and gentd26/")
    parser.add_argument("--processes", type=int, default=2, help="simulations at the same time")


if __name__ == "__main__":
    raise SystemExit(main())
