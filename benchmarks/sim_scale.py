"""Measure the requests that the simulator plays per second of one core, with 16, 300 and 3,000 devices.

    taskset -c 0 python -m benchmarks.sim_scale

DiffServe's first cascade runs with its allocator at 80 % of the devices' capacity: about eleven events a request, a
plan every five virtual seconds. The load grows with the devices, the number of requests does not. Cost is processor
time divided by the dataplane's events, with everything around them included.
"""

import statistics
import time
from dataclasses import dataclass
from math import log
from random import Random

from benchmarks.papers.constants import ARTEFACT_OVERPROVISION, CASCADES
from benchmarks.papers.systems import cascade_load, cascade_scenario, cascade_settings
from lab.planners.registry import POLICIES
from lab.runs.intervals import ratio_of_medians
from lab.runs.measure import Figure, Notes, at_least, at_most, informative, measured, parse_options, publish
from lab.simulator import Simulation

DEVICES = (16, 300, 3_000)
# Requests a second of a device: sixteen carry 16 of this cascade with a third deferred.
RATE_OF_A_DEVICE = 0.8
TARGET_PER_S = 3_000.0


@dataclass(frozen=True)
class Pass:
    """Store one run: requests a second of wall time, and processor microseconds an event."""

    requests_per_s: float
    event_us: float


def play(devices: int, count: int, seed: int) -> Pass:
    rate = RATE_OF_A_DEVICE * devices
    workload = cascade_load([rate], count / rate, 5.0, seed)
    policy = POLICIES["diffserve"](cascade_settings(CASCADES[0], rate, ARTEFACT_OVERPROVISION))
    simulation = Simulation(cascade_scenario(CASCADES[0], policy, devices), workload, Random(seed))
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    records = simulation.run()
    cpu_s = time.process_time() - began_cpu_s
    return Pass(len(records) / (time.perf_counter() - began_s), 1e6 * cpu_s / simulation.events_count)


def main() -> int:
    options = parse_options("sim_scale", __doc__)
    count, repeats = (1_000, 2) if options.quick else (20_000, 7)
    passes = {devices: [play(devices, count, seed) for seed in range(repeats)] for devices in DEVICES}
    figures: list[Figure] = []
    for devices in DEVICES:
        speeds = [one.requests_per_s for one in passes[devices]]
        target = at_least(TARGET_PER_S, "1/s") if devices == DEVICES[0] else informative("1/s")
        figures.append(measured(f"requests a second, {devices} devices", speeds, statistics.median, target))
    for devices in DEVICES:
        costs = [one.event_us for one in passes[devices]]
        figures.append(measured(f"an event, {devices} devices", costs, statistics.median, informative("us")))
    for devices in DEVICES[1:]:
        pairs = [(many.event_us, few.event_us) for many, few in zip(passes[devices], passes[DEVICES[0]], strict=True)]
        limit = log(devices) / log(DEVICES[0])
        name = f"an event with {devices} devices ÷ with {DEVICES[0]}"
        figures.append(measured(name, pairs, ratio_of_medians, at_most(limit)))
    notes: Notes = {"requests": count, "repeats": repeats, "cascade": CASCADES[0].name}
    return publish(options, figures, notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
