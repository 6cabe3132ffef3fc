"""Measure images in time on live suites beyond their capacity, by default (thinning under load) and with thinning off.

    python -m benchmarks.thinning_live [--only emulated|real]

Emulated: sixteen devices that hold `tiny-heavy`, as it runs on one CPU core, a quarter as fast, in batches of two.
Real: two workers of `tiny-heavy`. Both suites of a side run at the same time and are loaded in turns, with Poisson
arrivals at two and five times the capacity with all steps; the other one is idle meanwhile. Every request has a
deadline of three times its time at full batches, and no request names its steps. Capacity and time of the real workers
are measured first, by clients that wait for their images.

Goodput counts images in time. An image was surely thinned while it ran if its first skipped step comes after the
earliest one that the profile allows: at its start the earliest is taken under load. A refusal counts as one that
thinning could have avoided if an image ran at that moment that took all of its steps and began after the first refusal.
No paper thins a running sampler; the ratio's target is ours (simulated: `benchmarks.thinning`).
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.suites.emulated import PROMPTS, capacity_per_s, clients_of, steady_load
from lab.emulation.fleet_file import measured_batches, read_fleet
from lab.runs import Outcome, RequestRecord
from lab.runs.answers import ReceivedAnswer
from lab.runs.intervals import median_ratio
from lab.runs.load import LoadSettings, play
from lab.runs.machine import ROOT
from lab.runs.measure import (
    Figure,
    Options,
    at_least,
    at_most,
    counted,
    drawn_orders,
    informative,
    measured,
    parse_options,
    share,
)
from lab.runs.parts import PartResult, publish_parts
from lab.workloads import Workload
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import ProfileKind
from pentimento.profiles.kinds import options as allowed_options
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.models import THINNING_PROFILES

PARTS = ("emulated", "real")
MODEL, STEPS = "tiny-heavy", 50
ZOO = ROOT / "zoo"
DEVICES, SPEED, MAX_BATCH, WORKERS = 16, 0.25, 2, 2
LOADS = (2, 5)
DEADLINE_RUNS = 3.0
CLIENTS, CLIENT_IMAGES = 16, 3
# Thinning alone: reused features would make whole images cheaper on both sides.
ALONE = ("--feature-reuse", "asked")
# The default settings, and thinning off.
ARMS: Mapping[str, tuple[str, ...]] = {"default": ALONE, "off": (*ALONE, "--thinning", "off")}


@dataclass(frozen=True)
class ThinningSide:
    """Describe a side: its suites' flags, images per second with all steps, and seconds of one in a full batch."""

    flags: tuple[str, ...]
    capacity_per_s: float
    image_s: float


@dataclass(frozen=True)
class SeenRequest:
    """Store a request's record, and the steps that its image took from the first skipped one on."""

    record: RequestRecord
    thinned_steps: tuple[int, ...]


@dataclass(frozen=True)
class LiveRound:
    """Store one play of a workload."""

    load: int
    arm: str
    duration_s: float
    requests: tuple[SeenRequest, ...]

    @property
    def goodput_per_s(self) -> float:
        """Return images in time per second of arrivals."""
        in_time = sum(one.record.outcome is Outcome.COMPLETED for one in self.requests)
        return in_time / self.duration_s

    @property
    def answered(self) -> tuple[SeenRequest, ...]:
        return tuple(one for one in self.requests if one.record.outcome.answered)

    def avoidable_refusals(self) -> int:
        """Count refused requests during an image that took all steps and began after the first refusal."""
        refused = [one.record.ended_s for one in self.requests if not one.record.outcome.answered]
        since = min(refused, default=0.0)
        whole = [one.record for one in self.answered if not one.thinned_steps]
        spans = [(_began_s(record), record.ended_s) for record in whole if _began_s(record) > since]
        return sum(any(began_s < at_s < ended_s for began_s, ended_s in spans) for at_s in refused)


def _began_s(record: RequestRecord) -> float:
    """Return when the image's first step began."""
    return min((stage.began_s for stage in record.stages if stage.name == "paint"), default=record.ended_s)


def main() -> int:
    options = parse_options("thinning_live", __doc__, add_options)
    found = {part: part_of(part, options) for part in options.rest["only"] or PARTS}
    return publish_parts(options, PARTS, found, {"loads": "2, 5", "deadline_runs": DEADLINE_RUNS})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=40.0, help="of arrivals in a round, several deadlines")


def part_of(part: str, options: Options) -> PartResult:
    rounds, seconds = (1, 5.0) if options.quick else (options.rest["rounds"], options.rest["seconds"])
    with tempfile.TemporaryDirectory() as folder:
        side = emulated_side(Path(folder)) if part == "emulated" else real_side()
        found = asyncio.run(live_rounds(part, side, rounds, seconds))
    notes = {"capacity_per_s": round(side.capacity_per_s, 2), "image_s": round(side.image_s, 2), "rounds": rounds}
    return PartResult(list(figures_of(part, found)), notes)


def emulated_side(folder: Path) -> ThinningSide:
    """Write the fleet's file, and return its side."""
    path = folder / "fleet.toml"
    path.write_text(f"""seed = 1
batching = "steps"
default_model = "{MODEL}"
[[models]]
name = "{MODEL}"
profile = "{ZOO}/replay/recorded/{MODEL}.profile.json"
recording = "{ZOO}/replay/recorded"
steps_profile = "{ZOO}/thinning_profiles/{MODEL}.json"
[[devices]]
name = "heavy"
count = {DEVICES}
speed = {SPEED}
max_batch = {MAX_BATCH}
models = ["{MODEL}"]
""")
    fleet = read_fleet(path)
    model = fleet.model(MODEL)
    batch = next(one for one in measured_batches(model) if one.batch_size == MAX_BATCH)
    return ThinningSide(("--emulate", str(path)), capacity_per_s(fleet, MODEL), model.steps * batch.step.mean_s / SPEED)


def real_side() -> ThinningSide:
    """Measure the capacity of two workers, and return their side."""
    flags = ("--model", MODEL, "--workers", str(WORKERS), "--device", "cpu")
    with local_suite([*flags, *ARMS["off"]]) as suite:
        asyncio.run(closed_loop(suite, 1))
        began_s = time.monotonic()
        latencies = asyncio.run(closed_loop(suite, CLIENT_IMAGES))
        per_s = len(latencies) / (time.monotonic() - began_s)
    return ThinningSide(flags, per_s, sorted(latencies)[len(latencies) // 2])


async def closed_loop(suite: LocalSuite, count: int) -> list[float]:
    """Return the seconds of each of `count` images of each client."""
    async with AsyncClient(suite.endpoint.public) as client:

        async def images_of(number: int) -> list[float]:
            found = []
            for turn in range(count):
                began_s = time.monotonic()
                prompt = PROMPTS[number * count + turn]
                await client.generate(ImageRequest(prompt, seed=number, cache=CacheMode.OFF))
                found.append(time.monotonic() - began_s)
            return found

        of_clients = await asyncio.gather(*map(images_of, range(CLIENTS)))
    return [seconds for of_client in of_clients for seconds in of_client]


async def live_rounds(part: str, side: ThinningSide, rounds: int, seconds: float) -> list[LiveRound]:
    """Return all rounds of both arms, in drawn orders."""
    found = []
    with ExitStack() as stack:
        suites = {arm: stack.enter_context(local_suite([*side.flags, *flags])) for arm, flags in ARMS.items()}
        for number, arms in enumerate(drawn_orders(ARMS, rounds)):
            for load in LOADS:
                workload = workload_of(side, load, seconds, number)
                for arm in arms:
                    found.append(await live_round(suites[arm], arm, load, workload))
                    print(f"{part}, {load}x, {arm}: {found[-1].goodput_per_s:.2f} in time a second", flush=True)
    return found


def workload_of(side: ThinningSide, load: int, seconds: float, seed: int) -> Workload:
    """Return Poisson arrivals; no request names its steps, so that they may be skipped."""
    plain = steady_load(load * side.capacity_per_s, seconds, DEADLINE_RUNS * side.image_s, seed + 1)
    return replace(plain, arrivals=tuple(replace(arrival, steps=0) for arrival in plain.arrivals))


async def live_round(suite: LocalSuite, arm: str, load: int, workload: Workload) -> LiveRound:
    seen: list[SeenRequest] = []

    def note(record: RequestRecord, answer: ReceivedAnswer) -> None:
        made = answer.provenance
        seen.append(SeenRequest(record, made.route.thinned_steps if made is not None else ()))

    async with clients_of(suite, {"": ""}) as clients:
        await play(workload, clients, LoadSettings(cache=CacheMode.OFF), on_answer=note)
    return LiveRound(load, arm, workload.duration_s, tuple(seen))


def figures_of(part: str, rounds: Sequence[LiveRound]) -> Iterator[Figure]:
    """Yield goodput by default against none, then shares thinned, late and refused."""
    for load in LOADS:
        ours, plain = ([one for one in rounds if (one.load, one.arm) == (load, arm)] for arm in ARMS)
        pairs = [(one.goodput_per_s, other.goodput_per_s) for one, other in zip(ours, plain, strict=True)]
        yield measured(f"{part}: goodput at {load}x, default ÷ off", pairs, median_ratio, at_least(1.5))
        answered = [one for run in ours for one in run.answered]
        thinned = [one.thinned_steps for one in answered if one.thinned_steps]
        yield share(f"{part}: thinned at {load}x, of answered", len(thinned), len(answered), informative())
        midway = sum(steps[0] > earliest_step() for steps in thinned)
        yield share(f"{part}: thinned while running at {load}x, of answered", midway, len(answered), informative())
        late = sum(one.record.outcome is Outcome.LATE for one in answered)
        yield share(f"{part}: late at {load}x, of answered", late, len(answered), informative())
        count = sum(len(run.requests) for run in ours)
        refused = count - len(answered)
        yield share(f"{part}: refused at {load}x, of requests", refused, count, informative())
        avoidable = sum(run.avoidable_refusals() for run in ours)
        yield counted(f"{part}: refusals at {load}x that thinning could avoid", avoidable, count, at_most(0))


def earliest_step() -> int:
    """Return the first step at which the model's profile allows skipping the most."""
    profiles = read_profiles([THINNING_PROFILES]).of(ProfileKind.STEPS)
    (profile,) = (one for one in profiles if one.of.model == MODEL and not one.of.adapters)
    return min(allowed_options(profile, STEPS), key=lambda option: (option.total, -option.share)).first_step


if __name__ == "__main__":
    raise SystemExit(main())
