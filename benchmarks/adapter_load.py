"""Compare a production mix with LoRAs and ControlNets under load with the same mix without them, at equal
device-seconds.

    python -m benchmarks.adapter_load

The mix is Katz's service A (Table 1, section 3.1): nearly every request has two LoRAs and one or two ControlNets, with
the paper's popularity. Two fleets of paced devices serve at the same time, as real processes and streams where only
compute sleeps. One has workers and ControlNet replicas; the other has as many devices, all workers, and its requests
name no adapters.

A request's worth is its device-seconds by the profile: the worker's passes, the image, the weight patch and each
ControlNet's steps. Both fleets are offered 0.8 of their devices' seconds, in the same arrival pattern, with longer gaps
where requests are worth more. Throughput is the worth of the answered requests per second from the first arrival to the
last answer. A ControlNet replica counts as a device for the whole round, busy or not.

The profile is SDXL on an H800 (scenarios/paces/sdxl-h800.toml), slowed so that twenty devices' processes fit two cores,
with fewer steps per image. A worker runs up to two images at a time: one computes while the other waits for residuals.
LoRAs are read again for every image, while the first steps run without them.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from statistics import mean, median

import numpy as np

from benchmarks.suites.paced import PacedSuite, await_live, paced_suite
from lab.emulation.pace import DevicePace, read_pace, slowed, write_pace
from lab.emulation.png_text import flat_png
from lab.fixtures.controlnet_serving import shared_folder
from lab.runs import Outcome, RequestRecord
from lab.runs.intervals import median_ratio, percentile
from lab.runs.load import LoadSettings, play
from lab.runs.machine import ROOT
from lab.runs.measure import Figure, at_least, at_most, counted, informative, measured, parse_options, publish
from lab.workloads import Arrival, Workload
from lab.workloads.production import KATZ_A, Choice, choose
from pentimento.domain.image_request import CacheMode
from pentimento.sdk import AsyncClient

SDXL = ROOT / "scenarios" / "paces" / "sdxl-h800.toml"
WORKERS, REPLICAS = 5, 3
DEVICES = WORKERS + REPLICAS
SLOWNESS, STEPS = 3.0, 25
LOAD = 0.8
# Images per batch on a worker: while one waits for residuals, the other's pass continues.
MAX_BATCH = 2
# Extra time of a pass with LoRAs outside the weights: lora_batch measured 0.81 of the throughput without.
BESIDE_SHARE = 0.24
LEAST_RATIO = 0.9
ROUNDS, REQUESTS, QUICK_REQUESTS = 3, 50, 10
DEADLINE_S = 900.0
# Katz, section 3.1: five of service A's ControlNets take 98 % of the calls.
RESIDENT = 5
SEED = 16


@dataclass(frozen=True)
class LoadedRequest:
    """Store one finished or failed request: its due and end times in seconds, and its worth in device-seconds."""

    arrived_s: float
    ended_s: float
    worth_s: float
    outcome: str


@dataclass(frozen=True)
class LoadedRound:
    """Store the requests of one fleet in one round."""

    requests: tuple[LoadedRequest, ...]

    @property
    def throughput(self) -> float:
        """Return the device-seconds of answered requests per second and device; 1 if all devices are always busy."""
        seconds = max(one.ended_s for one in self.requests) - min(one.arrived_s for one in self.requests)
        return sum(one.worth_s for one in self.requests if one.outcome == Outcome.COMPLETED) / seconds / DEVICES


def pace_of(base: DevicePace, choices: Sequence[Choice]) -> DevicePace:
    """Return the base's profile, slowed down, with the adapters of the choices, which load as fast as the base's."""
    controlnets = sorted({name for choice in choices for name in choice.controlnets} | set(resident_controlnets()))
    loras = sorted({name for choice in choices for name in choice.loras})
    slow = slowed(base, SLOWNESS)
    controlnet = replace(slow.controlnets[0], load_s=base.controlnets[0].load_s)
    return replace(
        slow,
        steps=STEPS,
        beside_share=BESIDE_SHARE,
        controlnets=tuple(replace(controlnet, name=name) for name in controlnets),
        loras=tuple(replace(base.loras[0], name=name) for name in loras),
    )


def resident_controlnets() -> tuple[str, ...]:
    """Return the most popular ControlNets."""
    return tuple(f"controlnet-{number:03d}" for number in range(RESIDENT))


def worth_s(pace: DevicePace, choice: Choice) -> float:
    """Return the device-seconds of a request by the profile."""
    own = STEPS * (pace.encode.of(1) + pace.decode.of(1)) + pace.picture_s
    return (
        own + (pace.patch_s if choice.loras else 0.0) + len(choice.controlnets) * STEPS * pace.controlnets[0].step.of(1)
    )


def workload_of(choices: Sequence[Choice], pace: DevicePace, gaps: Sequence[float], seed: int) -> Workload:
    """Return one request per choice. `gaps` are relative to the mean gap that loads the devices as planned."""
    mean_s = mean(worth_s(pace, choice) for choice in choices) / (LOAD * DEVICES)
    arrivals = tuple(
        Arrival(
            at_s=float(at) * mean_s,
            tenant="default",
            prompt=f"a picture, number {number}",
            slo_class="standard",
            deadline_s=DEADLINE_S,
            steps=STEPS,
            seed=seed + number,
            model="sdxl",
            loras=choice.loras,
            controlnets=choice.controlnets,
        )
        for number, (choice, at) in enumerate(zip(choices, np.cumsum(gaps), strict=True))
    )
    return Workload("adapter_load", arrivals, {"builder": "adapter_load", "mix": KATZ_A.source})


async def loaded_round(
    client: AsyncClient, workload: Workload, pace: DevicePace, choices: Sequence[Choice]
) -> LoadedRound:
    """Play the workload, and return its requests' ends."""
    image = flat_png(pace.width_px, pace.height_px, (90, 120, 150))
    records = await play(workload, {"": client}, LoadSettings(cache=CacheMode.OFF, conditioning_image=image))
    return LoadedRound(tuple(_loaded(record, pace, choice) for record, choice in zip(records, choices, strict=True)))


def _loaded(record: RequestRecord, pace: DevicePace, choice: Choice) -> LoadedRequest:
    return LoadedRequest(record.arrived_s, record.ended_s, worth_s(pace, choice), record.outcome)


async def compared(
    suites: tuple[PacedSuite, PacedSuite], pace: DevicePace, choices: Sequence[Choice], count: int
) -> list[tuple[LoadedRound, LoadedRound]]:
    """Alternate rounds with and without adapters, and return both of each."""
    rng = np.random.default_rng(SEED)
    plain = [replace(choice, loras=(), controlnets=()) for choice in choices]
    found = []
    async with AsyncExitStack() as stack:
        for suite in suites:
            await await_live(suite, DEVICES + 1)
        clients = [await stack.enter_async_context(AsyncClient(suite.frontdoor)) for suite in suites]
        # open channels, and load everything once
        warm = [choices[:DEVICES], plain[:DEVICES]]
        for client, some in zip(clients, warm, strict=True):
            await loaded_round(client, workload_of(some, pace, [1.0] * len(some), 1), pace, some)
        for number in range(len(choices) // count):
            part = slice(number * count, (number + 1) * count)
            gaps = rng.exponential(size=count).tolist()
            arms = [
                await loaded_round(client, workload_of(mix[part], pace, gaps, 1000 * (number + 1)), pace, mix[part])
                for client, mix in zip(clients, (choices, plain), strict=True)
            ]
            found.append((arms[0], arms[1]))
    return found


def figures_of(rounds: Sequence[tuple[LoadedRound, LoadedRound]]) -> list[Figure]:
    """Return the ratio of the throughputs first."""
    pairs = [(ours.throughput, plain.throughput) for ours, plain in rounds]
    ratio = "throughput with adapters over without, at equal device-seconds"
    figures = [measured(ratio, pairs, median_ratio, at_least(LEAST_RATIO))]
    for place, name in enumerate(("with adapters", "without")):
        requests = [one for pair in rounds for one in pair[place].requests]
        latencies = [one.ended_s - one.arrived_s for one in requests]
        lost = sum(one.outcome != Outcome.COMPLETED for one in requests)
        throughputs = [pair[place].throughput for pair in rounds]
        figures += [
            measured(f"{name}: share of the devices' time in answers", throughputs, median, informative()),
            measured(f"{name}: p50", latencies, percentile(0.5), informative("s")),
            measured(f"{name}: p99", latencies, percentile(0.99), informative("s")),
            counted(f"{name}: requests that were not answered", lost, len(requests), at_most(0)),
        ]
    return figures


def main() -> int:
    options = parse_options("adapter_load", __doc__)
    count = QUICK_REQUESTS if options.quick else REQUESTS
    rounds = 1 if options.quick else ROUNDS
    choices = choose(KATZ_A, rounds * count, np.random.default_rng(SEED))
    with shared_folder() as folder:
        pace = pace_of(read_pace(SDXL), choices)
        write_pace(folder / "pace.toml", pace)
        with (
            paced_suite(folder / "pace.toml", WORKERS, REPLICAS, resident_controlnets(), MAX_BATCH) as adapted,
            paced_suite(folder / "pace.toml", DEVICES, 0, max_batch=MAX_BATCH) as plain,
        ):
            found = asyncio.run(compared((adapted, plain), pace, choices, count))
    notes = {"workers": WORKERS, "controlnet_replicas": REPLICAS, "load": LOAD, "slowness": SLOWNESS, "seed": SEED}
    return publish(options, figures_of(found), notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
