"""Kill and stop every process of a suite at random under load, its supervisor included; nothing may be lost.

Kills (SIGKILL), stops of up to six seconds (SIGSTOP, SIGCONT) and orderly ends (SIGTERM) of embedder, gateway and its
index, controller, workers, frontdoor and supervisor, while clients request images as the README shows: a call without
an answer is repeated under its idempotency key. After a supervisor's end another `pentimento up` starts on the same
state. Every third request uses the cache.

Requests are checked as in kill_one: the journal counts commits, and images without the cache equal those of a run
without faults byte by byte (workers run one at a time). After the load and the sweepers' time, no process without a
supervisor may remain, no object without a row, no half-written file, no open grant; after the end no process and no
socket. Last, the supervisor is killed and not replaced: its processes must end by themselves.

A stopped frontdoor loses its clients and correctly cancels their requests. Such requests are reported separately; each
must be reported as cancelled, with nothing committed.

`--production` runs the form for several hosts on one: PostgreSQL with a synchronous standby, S3 over HTTP, a standby of
frontdoor and controller, an edge, no supervisor, and each process on a virtual host. Faults are kills and stops of each
process, restarts and failovers of PostgreSQL, outages, wrong bytes and slow answers of the object store, partitions,
loss and delay, steps of clocks, exhausted descriptors and memory, full and slow disks (strace delays writes and syncs).
Clients call over gRPC and HTTP under the same keys, cancel and query. SIGTERM ends the faults early, and the result
says how many there were. It is `kill_any_production.json`; this form needs root.
"""

import argparse
import asyncio
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import psutil

from benchmarks.suites.faulted_load import STEPS, FaultedLoad, count_of, read_journal, request_figures
from benchmarks.suites.journal_events import record_events
from benchmarks.suites.processes import half_written, left_after_the_end, open_grants, orphan_objects
from benchmarks.suites.production import production_suite
from benchmarks.suites.production_faults import FAILOVER, PATIENT, POSTGRESQL, ProductionTrial
from benchmarks.suites.restarted import RestartedSuite, restarted_suite
from lab.runs.measure import Figure, Options, at_most, counted, informative, parse_options, publish, renamed
from pentimento.sdk import AsyncClient

# Sweepers run within this benchmark's waits; no request is abandoned for many faults.
ENVIRONMENT = {
    "PENTIMENTO_UNET_WORKER_MAX_BATCH": "1",
    "PENTIMENTO_FRONTDOOR_MAX_RERUNS": "10",
    "PENTIMENTO_COMMON_SWEEP_INTERVAL_S": "10",
    "PENTIMENTO_VECTORDB_GATEWAY_GRANT_TTL_S": "20",
}
# Leases outlast the wait for a processor: nine hosts share this machine's.
OF_HOSTS = {"PENTIMENTO_FRONTDOOR_LEASE_S": "5", "PENTIMENTO_CONTROLLER_LEASE_S": "5"}
SUPERVISOR = "supervisor"
# Not at random: starting a suite takes longer than everything else, and a short run must include it.
SUPERVISOR_EVERY = 10
KINDS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
KIND_SHARES = (0.6, 0.25, 0.15)
PAUSE_S = (0.2, 6.0)
STOP_S = (0.1, 6.0)
CACHED_EVERY = 3
SWEEP_LIMIT_S = 120.0
# a service drains for 30 s at most
ORPHAN_LIMIT_S = 40.0
POLL_S = 0.2


@dataclass(frozen=True)
class Fault:
    """Record one fault: `after_s` since the first, and `lasted_s` until the process continued or the suite was up
    again."""

    process: str
    kind: str
    after_s: float
    lasted_s: float = 0.0


@dataclass
class Remains:
    """Name everything that should not remain."""

    orphans: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    grants: int = 0
    sockets: list[str] = field(default_factory=list)
    ended_by_itself: list[str] = field(default_factory=list)
    outlived_s: float = 0.0


class KillAnyTrial:
    def __init__(self, suite: RestartedSuite, rng: random.Random) -> None:
        self._suite = suite
        self._rng = rng
        self._began = time.monotonic()
        self.faults: list[Fault] = []
        self.remains = Remains()

    async def run(self, faults: int, clients: int) -> FaultedLoad:
        """Run the load with its faults, and check what remains after both."""
        async with AsyncClient(self._suite.address, retries=PATIENT) as client:
            load = FaultedLoad(client, CACHED_EVERY)
            await load.generate_reference()
            stop = asyncio.Event()
            busy = load.start(clients, stop)
            while len(self.faults) < faults:
                await asyncio.sleep(self._rng.uniform(*PAUSE_S))
                await self._keep_up()
                self.faults.append(await self._disturb())
                print(f"fault {len(self.faults)} of {faults}: {self.faults[-1]}", flush=True)
            stop.set()
            await self._until_done(busy)
            await load.ask_again()
        await self._look_for_remains()
        return load

    async def _until_done(self, busy: list[asyncio.Task[None]]) -> None:
        while not all(task.done() for task in busy):
            await self._keep_up()
            await asyncio.wait(busy, timeout=POLL_S)

    async def _keep_up(self) -> None:
        """Start a suite again that ended unrequested, and report it."""
        if not self._suite.runs():
            self.remains.ended_by_itself.append((self._suite.state.logs / "up.log").read_text()[-300:])
            await self._up()

    async def _disturb(self) -> Fault:
        kind = self._rng.choices(KINDS, KIND_SHARES)[0]
        if (len(self.faults) + 1) % SUPERVISOR_EVERY == SUPERVISOR_EVERY // 2:
            return await self._disturb_supervisor(kind)
        while not (members := await asyncio.to_thread(self._suite.members)):
            await self._keep_up()
            await asyncio.sleep(POLL_S)
        name = self._rng.choice(sorted(members))
        with suppress(psutil.Error):
            members[name].send_signal(kind)
        stopped_s = await self._pause(members[name].resume) if kind is signal.SIGSTOP else 0.0
        return self._fault(name, kind, stopped_s)

    async def _disturb_supervisor(self, kind: signal.Signals) -> Fault:
        """Kill or end the supervisor; its successor starts after a moment."""
        self._suite.signal(kind)
        if kind is signal.SIGSTOP:
            return self._fault(SUPERVISOR, kind, await self._pause(lambda: self._suite.signal(signal.SIGCONT)))
        began = time.monotonic()
        assert self._suite.supervisor is not None
        await asyncio.to_thread(self._suite.supervisor.wait)
        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        await self._up()
        return self._fault(SUPERVISOR, kind, time.monotonic() - began)

    async def _pause(self, resume: Callable[[], None]) -> float:
        """Return the seconds of a stop."""
        seconds = self._rng.uniform(*STOP_S)
        await asyncio.sleep(seconds)
        with suppress(psutil.Error):
            resume()
        return seconds

    def _fault(self, name: str, kind: signal.Signals, lasted_s: float) -> Fault:
        return Fault(name, kind.name, round(time.monotonic() - self._began, 2), round(lasted_s, 2))

    async def _up(self) -> None:
        await asyncio.to_thread(self._suite.up)
        self.remains.orphans += await asyncio.to_thread(self._suite.orphans)

    async def _look_for_remains(self) -> None:
        remains, state = self.remains, self._suite.state
        await settled(lambda: bool(open_grants(state) or orphan_objects(state)), SWEEP_LIMIT_S)
        remains.files += orphan_objects(state) + half_written(state)
        remains.grants = open_grants(state)
        remains.orphans += self._suite.orphans()
        remains.outlived_s = await self._kill_for_good()
        await self._up()
        await asyncio.to_thread(self._suite.down)
        remains.orphans += self._suite.orphans()
        remains.sockets += left_after_the_end(state)

    async def _kill_for_good(self) -> float:
        """Return the seconds that processes outlived a killed supervisor; those still alive then are orphans."""
        began = time.monotonic()
        self._suite.signal(signal.SIGKILL)
        assert self._suite.supervisor is not None
        await asyncio.to_thread(self._suite.supervisor.wait)
        await settled(lambda: bool(self._suite.orphans()), ORPHAN_LIMIT_S)
        self.remains.orphans += self._suite.orphans()
        return time.monotonic() - began


async def settled(holds: Callable[[], bool], limit_s: float) -> None:
    """Return once `holds` is false, or at the limit."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end and await asyncio.to_thread(holds):  # noqa: ASYNC110 - another process, nothing to await
        await asyncio.sleep(POLL_S)


def main() -> int:
    options = parse_options("kill_any", __doc__, add_options)
    faults = 10 if options.quick else options.rest["faults"]
    if options.rest.pop("production"):
        return asyncio.run(in_production(renamed(options, "kill_any_production"), faults))
    flags = ["--workers", str(options.rest["workers"]), "--device", "cpu", "--threads", "1"]
    with restarted_suite(flags, ENVIRONMENT) as suite:
        journal = f"sqlite:///{suite.journal}"
        record_events(journal)
        trial = KillAnyTrial(suite, random.Random(options.rest["seed"]))
        load = asyncio.run(trial.run(faults, options.rest["clients"]))
        read_journal(journal, load)
    return publish(options, figures_of(trial, load), notes={**options.rest, "steps": STEPS})


async def in_production(options: Options, faults: int) -> int:
    """Run the form for several hosts, and publish its figures. SIGTERM and SIGINT end the faults early."""
    async with production_suite(ENVIRONMENT | OF_HOSTS) as suite:
        record_events(suite.journal)
        trial = ProductionTrial(suite, random.Random(options.rest["seed"]))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, trial.ends.set)
        load = await trial.run(faults, options.rest["clients"])
        await settled(lambda: bool(suite.open_grants() or suite.orphan_objects()), SWEEP_LIMIT_S)
        orphans, grants = await asyncio.to_thread(suite.orphan_objects), suite.open_grants()
        read_journal(suite.journal, load)
        ends = sum(process.starts - 1 for process in suite.processes.values()) - trial.kills
    accepted = [sample for sample in load.samples if sample.accepted]
    wrong = [sample for sample in accepted if sample.lost or sample.committed_twice]
    name = f"accepted requests lost or duplicated in {trial.faults} faults"
    figures = [
        counted(name, len(wrong), len(accepted), at_most(0, "requests")),
        *request_figures(load),
        count_of("cancelled by their client or its broken connection", [one.left for one in accepted], informative()),
        Figure("images also received over HTTP", load.http_images, informative("images")),
        remaining("refused calls over HTTP", load.refused, "calls"),
        remaining("errors that ended clients or the faults", trial.failed, "errors"),
        remaining("orphan objects", orphans, "objects"),
        Figure("grants left", grants, at_most(0, "grants"), 1),
        Figure("processes that ended by themselves", ends, informative("ends")),
    ]
    lines = (*load.refused, *trial.failed, *load.broken, *orphans)
    for found in (*(replace(sample, images=[]) for sample in wrong), *lines):
        print(found)
    notes = {"faults": trial.faults, "seed": options.rest["seed"], "kinds": len(trial.kinds)}
    return publish(options, figures, notes=notes | {"failovers": trial.kinds[POSTGRESQL, FAILOVER]})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--production", action="store_true", help="PostgreSQL, S3 and standbys, without a supervisor")
    parser.add_argument("--faults", type=int, default=200, help="number of kills and stops in sequence")
    parser.add_argument("--workers", type=int, default=3, help="workers of the suite")
    parser.add_argument("--clients", type=int, default=5, help="clients with one request in flight each")
    parser.add_argument("--seed", type=int, default=3, help="seed of the faults")


def figures_of(trial: KillAnyTrial, load: FaultedLoad) -> list[Figure]:
    accepted, remains = [sample for sample in load.samples if sample.accepted], trial.remains
    left = [sample.left for sample in accepted]
    return [
        *request_figures(load),
        count_of("cancelled because their client's connection broke", left, informative("requests")),
        remaining("orphan processes", remains.orphans, "processes"),
        remaining("orphan files", remains.files, "files"),
        Figure("grants left", remains.grants, at_most(0, "grants"), 1),
        remaining("sockets left", remains.sockets, "sockets"),
        remaining("ends of the suite that nobody asked for", remains.ended_by_itself, "ends"),
        Figure("processes outlive a killed supervisor", remains.outlived_s, informative("s")),
    ]


def remaining(name: str, found: list[str], unit: str) -> Figure:
    return Figure(name, len(found), at_most(0, unit))


if __name__ == "__main__":
    raise SystemExit(main())
