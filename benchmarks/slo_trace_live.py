"""The systems of slo_trace on live suites: an emulated fleet of sixteen, and two real workers.

    python -m benchmarks.slo_trace_live [--only real] [--segment 3]

Each system plans a suite of its own (`pentimento up --policy`), and every suite is asked for the same requests at the
same times: DiffServe's Azure shape, from a quarter of the peak to the peak, which is `ABOVE` times what the static
cascade is provisioned for. That and the SLO are set beforehand: for the emulated fleet by its file; for real workers by
what both of them carry of the heavy model, and by what a few lone pictures take. Quality is that of answered requests,
by the model that painted them: 1 for the heavy one, `LIGHT_QUALITY` for the light one; joint, which weighs pictures, is
told the same.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.emulated_runs import FLEETS, PROMPTS, clients_of, played
from benchmarks.paper_constants import AZURE_SHAPE
from benchmarks.report import Options, parse_options, publish
from benchmarks.slo_trace import (
    ABOVE,
    FALLING_BACK,
    LIGHT_QUALITY,
    LIGHT_SPREAD,
    OURS_SERVES_AS,
    SEGMENT_S,
    SWING,
    TraceRun,
    falls_back,
    figures_of,
    mean,
)
from lab.runs import RequestRecord
from lab.workloads import Content, Segment, SloClass, Workload, fluctuating
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.models import find_model

SYSTEMS = (
    "clipper-light",
    "clipper-heavy",
    "proteus",
    "static-cascade",
    "diffserve",
    "diffserve" + FALLING_BACK,
    OURS_SERVES_AS,
)
FLEET = FLEETS / "cascade-16-half.toml"
# Of the emulated fleet: what its static cascade is provisioned for, and DiffServe's SLO on devices half as fast.
EMULATED_PER_S, EMULATED_SLO_S = 20.0, 10.0
# Of real workers, one for each model; the SLO in lone pictures of the heavy one.
REAL_MODELS = ("tiny-light", "tiny-heavy")
REAL_SLO = 8.0
CLIENTS, LONE_COUNT = 16, 5
# Until a policy plans for a suite that has just started, and has loaded what it wants; requests of that time do not
# count.
SETTLING_S = 20.0


@dataclass(frozen=True)
class LiveSide:
    """A suite that systems plan: its flags, the models of its cascade, requests a second that a static system is
    provisioned for, and the SLO."""

    name: str
    flags: tuple[str, ...]
    light: str
    heavy: str
    provisioned_per_s: float
    slo_s: float

    @property
    def settings(self) -> str:
        """Return what controllers are told: the demand that static systems are provisioned for, and what answers are
        judged by."""
        qualities = [f"{self.light}={LIGHT_QUALITY}:{LIGHT_SPREAD:.2f}", f"{self.heavy}=1"]
        return f"[controller]\npeak_per_s = {self.provisioned_per_s}\nqualities = {qualities}\n"

    def trace(self, segment_s: float, seed: int) -> Workload:
        """Return the requests of its trace, after those of its low while the suite settles."""
        peak = ABOVE * self.provisioned_per_s
        segments = [Segment(SETTLING_S, peak / SWING)]
        segments += [Segment(segment_s, peak / SWING + share * (peak - peak / SWING)) for share in AZURE_SHAPE]
        slo = (SloClass("standard", self.slo_s),)
        content = Content(prompts=PROMPTS, slo_classes=slo, first_prompt=seed * 1_000)
        plain = fluctuating(np.random.default_rng(seed), content, segments)
        # Each model of the cascade takes its own steps.
        return replace(plain, arrivals=tuple(replace(arrival, steps=0) for arrival in plain.arrivals))


def main() -> int:
    options = parse_options("slo_trace_live", __doc__, add_options)
    with tempfile.TemporaryDirectory() as folder:
        by_side = [(side, list(runs_of(options, side))) for side in sides(options, Path(folder))]
    runs = [run for _, of_side in by_side for run in of_side]
    notes = {"shape": "azure", "segment_s": options.rest["segment"], "above": ABOVE, "swing": SWING}
    notes |= {"provisioned_per_s": {side.name: side.provisioned_per_s for side, _ in by_side}}
    notes |= {"slo_s": {side.name: side.slo_s for side, _ in by_side}}
    figures = [
        # One round: nothing is known of how much it differs from another.
        replace(figure, name=f"{side}: {figure.name}", interval=None)
        for side in dict.fromkeys(run.trace for run in runs)
        for figure in figures_of([run for run in runs if run.trace == side], runs[-1].system)
    ]
    return publish(options, figures, notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=("emulated", "real"))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="these alone; the last is ours")
    parser.add_argument("--segment", type=float, default=SEGMENT_S, help="seconds of each of the 28 segments")


def sides(options: Options, folder: Path) -> Iterator[LiveSide]:
    """Yield those that are asked for. Profiles of real models are written to the folder."""
    if options.rest["only"] != "real":
        yield LiveSide("emulated", ("--emulate", str(FLEET)), "sd-turbo", "sd15", EMULATED_PER_S, EMULATED_SLO_S)
    if options.rest["only"] != "emulated":
        profiles = profiled(folder)
        flags = ["--cascade", ",".join(REAL_MODELS), "--device", "cpu"]
        flags += [word for file in profiles for word in ("--profile", str(file))]
        lone_s, carried_per_s = asked_before(flags, REAL_MODELS[-1])
        yield LiveSide("real", tuple(flags), *REAL_MODELS, carried_per_s, REAL_SLO * lone_s)


def profiled(folder: Path) -> list[Path]:
    """Return the files with what the models cost on this machine, measured side by side, as they are served. Policies
    plan no model of which that is not known."""
    files = [folder / f"{model}.json" for model in REAL_MODELS]
    module = (sys.executable, "-m", "services.unet_worker.profile")
    running = [
        subprocess.Popen([*module, "--model", str(find_model(model).path), "--device", "cpu", "--out", str(file)])
        for model, file in zip(REAL_MODELS, files, strict=True)
    ]
    if any([process.wait() for process in running]):
        raise RuntimeError("a model could not be profiled")
    return files


def asked_before(flags: Sequence[str], model: str) -> tuple[float, float]:
    """Return the median seconds of a lone picture of a suite, and the pictures a second of one in which as many workers
    hold that model, with `CLIENTS` who ask for the next one when they have the last."""
    with local_suite(flags) as suite:
        lone = asyncio.run(seconds_of_pictures(suite, model, 1, LONE_COUNT))
    with local_suite(["--model", model, "--workers", str(len(REAL_MODELS)), "--device", "cpu"]) as suite:
        asyncio.run(seconds_of_pictures(suite, model, CLIENTS, 1))
        began = time.monotonic()
        together = asyncio.run(seconds_of_pictures(suite, model, CLIENTS, LONE_COUNT))
        return sorted(lone)[len(lone) // 2], len(together) / (time.monotonic() - began)


async def seconds_of_pictures(suite: LocalSuite, model: str, clients: int, count: int) -> list[float]:
    """Return the seconds of each of `count` pictures of each client."""
    async with AsyncClient(suite.endpoint.public) as client:

        async def one_after_the_other(number: int) -> list[float]:
            found = []
            for seed in range(number, clients * count, clients):
                began = time.monotonic()
                await client.generate(
                    ImageRequest(PROMPTS[seed % len(PROMPTS)], model=model, seed=seed, cache=CacheMode.OFF)
                )
                found.append(time.monotonic() - began)
            return found

        painted = await asyncio.gather(*map(one_after_the_other, range(clients)))
        return [seconds for of_client in painted for seconds in of_client]


def runs_of(options: Options, side: LiveSide) -> Iterator[TraceRun]:
    """Yield how every system fares on a suite."""
    workload = side.trace(0.5 if options.quick else options.rest["segment"], seed=1)
    for system in options.rest["systems"][-2 if options.quick else 0 :]:
        with planned_suite(side, system) as suite:
            records = [one for one in asyncio.run(play(suite, workload)) if one.arrived_s >= SETTLING_S]
        found = TraceRun(system, side.name, violations(records), quality(records, side), len(records))
        print(found.row(), flush=True)
        yield found


@contextmanager
def planned_suite(side: LiveSide, system: str) -> Iterator[LocalSuite]:
    """Yield the suite with that system."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "settings.toml"
        settings.write_text(side.settings)
        policy = system.removesuffix(FALLING_BACK)
        flags = [*side.flags, "--policy", policy, "--slo-s", str(side.slo_s), "--config", str(settings)]
        # In the papers a late picture is no picture, and no light one stands in for a heavy one that would be late.
        with local_suite(
            flags, environment={"PENTIMENTO_FRONTDOOR_FALL_BACK": str(falls_back(system)).lower()}
        ) as suite:
            yield suite


async def play(suite: LocalSuite, workload: Workload) -> list[RequestRecord]:
    """Return what became of every request."""
    async with clients_of(suite, {"": ""}) as clients:
        return await played(workload, clients)


def violations(records: Sequence[RequestRecord]) -> float:
    """Return the share of requests that were late, dropped, rejected or failed."""
    return mean([float(record.outcome.violation) for record in records])


def quality(records: Sequence[RequestRecord], side: LiveSide) -> float:
    """Return the mean of answered requests, 0 where there is none."""
    of: Mapping[str, float] = {side.light: LIGHT_QUALITY, side.heavy: 1.0}
    return mean([of[record.model] for record in records if record.outcome.answered] or [0.0])


if __name__ == "__main__":
    raise SystemExit(main())
