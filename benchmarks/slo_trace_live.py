"""Play slo_trace's systems on live suites: an emulated fleet of sixteen, and two real workers.

    python -m benchmarks.slo_trace_live [--only real] [--segment 3]

Each system plans a separate suite (`pentimento up --policy`), and every suite gets the same requests at the same times:
DiffServe's Azure shape, from a quarter of the peak to the peak, which is `ABOVE` times the static cascade's
provisioning. That and the SLO are set beforehand: for the emulated fleet by its file; for real workers by their joint
throughput of the heavy model, and by the time of a few single images. Quality is the answered requests', by their
model: 1 for the heavy one, `LIGHT_QUALITY` for the light one; joint gets the same values for its plans.
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

from benchmarks.papers.constants import AZURE_SHAPE
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
from benchmarks.suites.emulated import FLEETS, PROMPTS, clients_of, played
from lab.runs import RequestRecord
from lab.runs.measure import Options, parse_options, publish
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
    "static-threshold",
    "aimd",
    "no-queueing-model",
    "diffserve",
    "diffserve" + FALLING_BACK,
    OURS_SERVES_AS,
)
FLEET = FLEETS / "cascade-16-half.toml"
# emulated fleet: the static cascade's provisioning, and DiffServe's SLO on devices half as fast
EMULATED_PER_S, EMULATED_SLO_S = 20.0, 10.0
# real workers, one for each model; the SLO in single images of the heavy one
REAL_MODELS = ("tiny-light", "tiny-heavy")
REAL_SLO = 8.0
CLIENTS, LONE_COUNT = 16, 5
# until a policy has planned for a new suite and loaded its models; requests until then do not count
SETTLING_S = 20.0


@dataclass(frozen=True)
class LiveSide:
    """Describe a suite that systems plan: its flags, its cascade's models, requests per second for static systems, and
    the SLO."""

    name: str
    flags: tuple[str, ...]
    light: str
    heavy: str
    provisioned_per_s: float
    slo_s: float

    @property
    def settings(self) -> str:
        """Return the controllers' settings: the demand for static systems, and the models' qualities."""
        qualities = [f"{self.light}={LIGHT_QUALITY}:{LIGHT_SPREAD:.2f}", f"{self.heavy}=1"]
        options = [f"peak_per_s={self.provisioned_per_s}"]
        return f"[controller]\npolicy_options = {options}\nqualities = {qualities}\n"

    def trace(self, segment_s: float, seed: int) -> Workload:
        """Return its trace's requests, after requests at its low while the suite settles."""
        peak = ABOVE * self.provisioned_per_s
        segments = [Segment(SETTLING_S, peak / SWING)]
        segments += [Segment(segment_s, peak / SWING + share * (peak - peak / SWING)) for share in AZURE_SHAPE]
        slo = (SloClass("standard", self.slo_s),)
        content = Content(prompts=PROMPTS, slo_classes=slo, first_prompt=seed * 1_000)
        plain = fluctuating(np.random.default_rng(seed), content, segments)
        # each model of the cascade uses its default steps
        return replace(plain, arrivals=tuple(replace(arrival, steps=0) for arrival in plain.arrivals))


def main() -> int:
    options = parse_options("slo_trace_live", __doc__, add_options)
    with tempfile.TemporaryDirectory() as folder:
        by_side = [(side, list(runs_of(options, side))) for side in sides(options, Path(folder))]
    runs = [run for _, of_side in by_side for run in of_side]
    notes = {"shape": "azure", "segment_s": options.rest["segment"], "above": ABOVE, "swing": SWING}
    figures = [
        # one round: its difference from another is unknown
        replace(figure, name=f"{side}: {figure.name}", interval=None)
        for side in dict.fromkeys(run.trace for run in runs)
        for figure in figures_of([run for run in runs if run.trace == side], runs[-1].system)
    ]
    return publish(options, figures, notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=("emulated", "real"))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="only these; the last is ours")
    parser.add_argument("--segment", type=float, default=SEGMENT_S, help="seconds of each of the 28 segments")


def sides(options: Options, folder: Path) -> Iterator[LiveSide]:
    """Yield the requested sides. Profiles of real models are written to the folder."""
    if options.rest["only"] != "real":
        yield LiveSide("emulated", ("--emulate", str(FLEET)), "sd-turbo", "sd15", EMULATED_PER_S, EMULATED_SLO_S)
    if options.rest["only"] != "emulated":
        profiles = profiled(folder)
        flags = ["--cascade", ",".join(REAL_MODELS), "--device", "cpu"]
        flags += [word for file in profiles for word in ("--profiles", str(file))]
        lone_s, carried_per_s = asked_before(flags, REAL_MODELS[-1])
        yield LiveSide("real", tuple(flags), *REAL_MODELS, carried_per_s, REAL_SLO * lone_s)


def profiled(folder: Path) -> list[Path]:
    """Return the files of the models' costs on this machine, measured next to each other, as served. Policies plan no
    model without them."""
    files = [folder / f"{model}.json" for model in REAL_MODELS]
    module = (sys.executable, "-m", "services.unet_worker.profiling", "cost")
    running = [
        subprocess.Popen([*module, "--model", str(find_model(model).path), "--device", "cpu", "--out", str(file)])
        for model, file in zip(REAL_MODELS, files, strict=True)
    ]
    if any([process.wait() for process in running]):
        raise RuntimeError("a model could not be profiled")
    return files


def asked_before(flags: Sequence[str], model: str) -> tuple[float, float]:
    """Return the median seconds of a single image on a suite, and the images per second of a suite with the same number
    of workers of that model and `CLIENTS` closed-loop clients."""
    with local_suite(flags) as suite:
        lone = asyncio.run(image_seconds(suite, model, 1, LONE_COUNT))
    with local_suite(["--model", model, "--workers", str(len(REAL_MODELS)), "--device", "cpu"]) as suite:
        asyncio.run(image_seconds(suite, model, CLIENTS, 1))
        began = time.monotonic()
        together = asyncio.run(image_seconds(suite, model, CLIENTS, LONE_COUNT))
        return sorted(lone)[len(lone) // 2], len(together) / (time.monotonic() - began)


async def image_seconds(suite: LocalSuite, model: str, clients: int, count: int) -> list[float]:
    """Return the seconds of each of `count` images of each client."""
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

        of_clients = await asyncio.gather(*map(one_after_the_other, range(clients)))
        return [seconds for of_client in of_clients for seconds in of_client]


def runs_of(options: Options, side: LiveSide) -> Iterator[TraceRun]:
    """Yield every system's results on a suite."""
    workload = side.trace(0.5 if options.quick else options.rest["segment"], seed=1)
    for system in options.rest["systems"][-2 if options.quick else 0 :]:
        with planned_suite(side, system) as suite:
            records = [one for one in asyncio.run(play(suite, workload)) if one.arrived_s >= SETTLING_S]
        found = TraceRun(system, side.name, violations(records), quality(records, side), len(records))
        print(found.line(), flush=True)
        yield found


@contextmanager
def planned_suite(side: LiveSide, system: str) -> Iterator[LocalSuite]:
    """Yield the suite with that system."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "settings.toml"
        settings.write_text(side.settings)
        policy = system.removesuffix(FALLING_BACK)
        flags = [*side.flags, "--policy", policy, "--slo-s", str(side.slo_s), "--config", str(settings)]
        flags += ["--thinning", "off"]
        # In the papers a late image does not count, no light one replaces a heavy one that would be late, and none is
        # thinned.
        with local_suite(
            flags, environment={"PENTIMENTO_FRONTDOOR_FALL_BACK": str(falls_back(system)).lower()}
        ) as suite:
            yield suite


async def play(suite: LocalSuite, workload: Workload) -> list[RequestRecord]:
    """Return every request's record."""
    async with clients_of(suite, {"": ""}) as clients:
        return await played(workload, clients)


def violations(records: Sequence[RequestRecord]) -> float:
    """Return the share of requests that were late, dropped, rejected or failed."""
    return mean([float(record.outcome.violation) for record in records])


def quality(records: Sequence[RequestRecord], side: LiveSide) -> float:
    """Return the mean of answered requests, 0 if there is none."""
    of: Mapping[str, float] = {side.light: LIGHT_QUALITY, side.heavy: 1.0}
    return mean([of[record.model] for record in records if record.outcome.answered] or [0.0])


if __name__ == "__main__":
    raise SystemExit(main())
