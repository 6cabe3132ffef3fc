"""Run fifty thousand requests, and measure the memory, descriptors and threads that each process gains.

The volume runs on a suite of real processes with emulated devices (no image is generated; frontdoor, controller,
gateway, embedder and their stores are real), and a few thousand requests at the same time on a suite with a real model.
Requests use the cache, leave, err and repeat, each at its share. Finished requests are stored for a minute only, so
that journal and store must reach a plateau within the run.

Memory: the slope of each process's resident set over the ended requests, after a warm-up, by least squares over bins of
time, with Student's interval. Only the volume's has a target: a few thousand requests cannot distinguish a megabyte in
ten thousand from chance. Descriptors and threads: with no client connected, at the end less at the start. Journal and
store: their largest size in the run's last quarter ÷ that in its second one.
"""

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.soak_load import CLIENTS, SoakLoad
from benchmarks.suites.processes import Holdings, holdings, members
from lab.runs.intervals import slope_with_interval
from lab.runs.measure import Figure, Interval, Target, at_most, informative, parse_options, publish
from pentimento.supervisor.local import LocalSuite, local_suite

MIB = 1 << 20
PER = 10_000
BINS = 16
LOOK_S = 1.0
STORE_LOOKS = 10  # walking the store is slow: at every tenth sample
# the share of a run after which memory is sampled: retention and cache have reached their plateau
WARM_UP = 0.25
SETTLE_LIMIT_S = 90.0
ENVIRONMENT = {
    "PENTIMENTO_FRONTDOOR_RESULT_RETENTION_H": "0.0167",
    "PENTIMENTO_FRONTDOOR_SWEEP_INTERVAL_S": "60",
    "PENTIMENTO_VECTORDB_GATEWAY_MAX_ENTRIES": "200",
    "PENTIMENTO_VECTORDB_GATEWAY_GRANT_TTL_S": "30",
}
FLEET = """
seed = 1
cache = true
[[models]]
name = "quick"
steps = 4
width_px = 64
height_px = 64
latency_s = { 1 = 0.02, 4 = 0.03, 8 = 0.04 }
[[devices]]
name = "device"
count = 2
models = ["quick"]
max_batch = 8
"""
GROWTH = at_most(1.0, f"MiB per {PER:,} requests")
BOUNDED = at_most(1.1, "x")


@dataclass(frozen=True)
class Look:
    """Store one moment: requests ended so far, each process's holdings, bytes of journal and store."""

    at_s: float
    ended: int
    processes: dict[str, Holdings]
    journal_bytes: int
    store_bytes: int


@dataclass
class SuiteRun:
    """Hold one suite's run. `start` and `end`: processes' holdings with no client connected."""

    name: str
    requests: int
    looks: list[Look] = field(default_factory=list)
    start: dict[str, Holdings] = field(default_factory=dict)
    end: dict[str, Holdings] = field(default_factory=dict)
    endings: dict[str, int] = field(default_factory=dict)
    lasted_s: float = 0.0

    def settled_looks(self) -> list[Look]:
        return [look for look in self.looks if look.ended >= WARM_UP * self.requests]


class Soak:
    """Play a part's load on its suite, sampling it."""

    def __init__(self, suite: LocalSuite, part: SuiteRun, steps: int, rate: float, stores: Path) -> None:
        self._suite = suite
        self._part = part
        self._stores = stores
        self._load = SoakLoad(steps, rate)
        self._began = time.monotonic()
        self._store_bytes = 0

    async def run(self, first: int) -> None:
        """Play; `first` concurrent requests precede the start, so that pools of threads and connections have their
        size."""
        part, address = self._part, self._suite.endpoint.public
        await self._load.crowd(address, first)
        part.start = await self._without_clients(None)
        self._load.start_again()
        self._began = time.monotonic()
        looking = asyncio.create_task(self._look_for_ever())
        await self._load.play(address, part.requests)
        part.lasted_s = round(time.monotonic() - self._began, 1)
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        part.end = await self._without_clients(part.start)
        part.endings = dict(self._load.endings)

    async def _look_for_ever(self) -> None:
        for number in range(1_000_000):
            self._part.looks.append(await asyncio.to_thread(self._look, number))
            if number % 60 == 0:
                print(f"{self._part.name}: {self._load.ended} of {self._part.requests}", flush=True)
            await asyncio.sleep(LOOK_S)

    def _look(self, number: int) -> Look:
        if number % STORE_LOOKS == 0:
            self._store_bytes = size_of(self._stores / "objects")
        journal = sum(size_of(path) for path in self._stores.glob("frontdoor.sqlite*"))
        return Look(
            round(time.monotonic() - self._began, 2), self._load.ended, self._holdings(), journal, self._store_bytes
        )

    def _holdings(self) -> dict[str, Holdings]:
        found = {name: holdings(process) for name, process in members(self._suite.state.path).items()}
        return {name: held for name, held in found.items() if held is not None}

    async def _without_clients(self, wanted: dict[str, Holdings] | None) -> dict[str, Holdings]:
        """Return the holdings once nothing grows or nothing exceeds `wanted`, or at the limit."""
        end = time.monotonic() + SETTLE_LIMIT_S
        before: dict[str, Holdings] = {}
        while time.monotonic() < end:
            await asyncio.sleep(3.0)
            now = await asyncio.to_thread(self._holdings)
            if not exceeding(now, before if wanted is None else wanted) and before:
                return now
            before = now
        return before


def exceeding(now: dict[str, Holdings], then: dict[str, Holdings]) -> list[str]:
    """Return processes with more descriptors or threads than `then`, or missing from it."""
    return [
        name
        for name, held in now.items()
        if name not in then or held.descriptors > then[name].descriptors or held.threads > then[name].threads
    ]


def size_of(path: Path) -> int:
    total = 0
    for file in path.rglob("*") if path.is_dir() else (path,):
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def main() -> int:
    options = parse_options("soak", __doc__, add_options)
    volume = SuiteRun("emulated devices", 2_000 if options.quick else options.rest["requests"])
    real = SuiteRun("a real model", 100 if options.quick else options.rest["real"])
    with emulated() as suite:
        asyncio.run(
            Soak(suite, volume, 4, options.rest["rate"], suite.state.path / "emulated").run(volume.requests // 10)
        )
    with local_suite(("--device", "cpu"), environment=ENVIRONMENT) as suite:
        soak = Soak(suite, real, 2, options.rest["real_rate"], suite.state.path)
        asyncio.run(soak.run(real.requests // 10))
    figures = [*figures_of(volume, GROWTH), *figures_of(real, informative(GROWTH.unit))]
    return publish(
        options,
        figures,
        notes={"clients": CLIENTS, "requests": volume.requests, "requests_of_a_real_model": real.requests},
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=50_000, help="on emulated devices")
    parser.add_argument("--real", type=int, default=3_000, help="on a real model")
    parser.add_argument("--rate", type=float, default=30.0, help="maximum requests per second on emulated devices")
    parser.add_argument("--real-rate", type=float, default=8.0, help="the same, on a real model")


@contextmanager
def emulated() -> Iterator[LocalSuite]:
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        fleet = Path(folder) / "fleet.toml"
        fleet.write_text(FLEET)
        with local_suite(("--emulate", str(fleet)), environment=ENVIRONMENT) as suite:
            yield suite


def figures_of(part: SuiteRun, target: Target) -> list[Figure]:
    """Report each process's growth against the target; for descriptors and threads the worst."""
    growing = [growth_figure(part, name, target) for name in sorted(part.start)]
    rest = [
        held_figure(part, "descriptors"),
        held_figure(part, "threads"),
        bounded_figure(part, "journal", [look.journal_bytes for look in part.looks]),
        bounded_figure(part, "store", [look.store_bytes for look in part.looks]),
    ]
    bad = [count for how, count in part.endings.items() if how not in ("OK", "LEFT", "INVALID_FIELD")]
    unexpected = Figure(f"{part.name}: unexpected endings", sum(bad), at_most(0, "requests"))
    return [*growing, *rest, unexpected]


def growth_figure(part: SuiteRun, process: str, target: Target) -> Figure:
    """Report a process's growth, or no value if it ended during the run."""
    points = [
        (look.ended / PER, look.processes[process].rss_bytes / MIB)
        for look in part.settled_looks()
        if process in look.processes
    ]
    name = f"{part.name}: memory of {process}"
    means = binned(points)
    if len(means) < 3:
        return Figure(name, None, target, len(points))
    slope, low, high = slope_with_interval(means)
    return Figure(name, slope, target, len(means), Interval(low, high, f"Student, {len(means)} bins"))


def binned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return means of runs of neighbouring points, in order, since neighbours are not independent."""
    count = min(BINS, len(points))
    edges = [len(points) * number // count for number in range(count + 1)] if count else []
    runs = [points[start:end] for start, end in itertools.pairwise(edges)]
    return [(sum(x for x, _ in run) / len(run), sum(y for _, y in run) / len(run)) for run in runs]


def held_figure(part: SuiteRun, what: str) -> Figure:
    more = {name: getattr(part.end[name], what) - getattr(held, what) for name, held in part.start.items()}
    worst = max(more.values())
    return Figure(f"{part.name}: {what} at the end less at the start", worst, at_most(0), len(more))


def bounded_figure(part: SuiteRun, what: str, sizes: Sequence[int]) -> Figure:
    """Report the plateau; a run shorter than a few retentions has none."""
    quarter = len(sizes) // 4
    target: Target = BOUNDED if part.lasted_s > 400 else informative("x")
    name = f"{part.name}: {what} in the last quarter / in the second"
    before = max(sizes[quarter : 2 * quarter], default=0)
    value = max(sizes[-quarter:]) / before if quarter and before else None
    return Figure(name, value, target, len(sizes))


if __name__ == "__main__":
    raise SystemExit(main())
