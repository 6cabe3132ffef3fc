"""Kill workers under load, and count lost requests, second commits and changed images. There must be none.

A real suite with several workers serves a steady load. One of the busy workers is killed (SIGKILL) repeatedly at a
random moment of its denoising; the supervisor starts it again. Every accepted request must end in one image, equal byte
by byte to that of a run without faults for the same prompt and seed. The checks compare the clients' answers, the API's
later answers, and the journal, which counts every commit. Workers run one image at a time: an image that shares steps
with others is equal within 1e-4 of its latents, not by the byte.

A worker is killed only after it has served longer than the supervisor's crash-loop limit, which would abandon it, and
not while it runs a request that has lost the allowed number of workers: by design a third loss ends a request
(`max-reruns`), so that it cannot take all workers with it.
"""

import argparse
import asyncio
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from benchmarks.suites.faulted_load import STEPS, FaultedLoad, read_journal, request_figures
from benchmarks.suites.journal_events import record_events
from lab.runs.measure import Figure, informative, measured, parse_options, publish
from pentimento.api.frontdoor.v1.frontdoor_service_pb2 import WorkerView
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.worker import WorkerClient
from pentimento.dataplane import DataplaneSettings
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import AsyncClient, RetryPolicy
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.process import RestartPolicy

ONE_AT_A_TIME = {"PENTIMENTO_UNET_WORKER_MAX_BATCH": "1"}
# The supervisor forgives an end after this service time; a second more, because the two clocks differ.
LEAST_SERVED_S = RestartPolicy().stable_s + 1.0
POLL_S = 0.01
MADE_UP_FOR = DataplaneSettings().max_reruns
NO_RETRIES = RetryPolicy(tries=1)


@dataclass(frozen=True)
class Kill:
    """Record one kill. `step` is the last that the worker reported; `ejected_s` until the frontdoor stopped counting on
    it."""

    worker: str
    step: int
    step_count: int
    ejected_s: float


def main() -> int:
    options = parse_options("kill_one", __doc__, add_options)
    kills = 5 if options.quick else options.rest["kills"]
    flags = ["--workers", str(options.rest["workers"]), "--device", "cpu", "--threads", "1"]
    with local_suite(flags, environment=ONE_AT_A_TIME) as suite:
        journal = f"sqlite:///{suite.state.path / 'frontdoor.sqlite'}"
        record_events(journal)
        trial = KillOneTrial(suite, random.Random(options.rest["seed"]))
        load = asyncio.run(trial.run(kills, options.rest["clients"]))
        read_journal(journal, load)
    return publish(options, figures_of(trial, load), notes={**options.rest, "steps": STEPS})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=50, help="number of workers to kill in sequence")
    parser.add_argument("--workers", type=int, default=4, help="workers of the suite")
    parser.add_argument("--clients", type=int, default=5, help="clients with one request in flight each")
    parser.add_argument("--seed", type=int, default=2, help="seed of the random moments")


class KillOneTrial:
    """Run one suite under load and kills."""

    def __init__(self, suite: LocalSuite, rng: random.Random) -> None:
        self._suite = suite
        self._rng = rng
        self._first_seen: dict[tuple[str, int], float] = {}
        self._reference_s = 0.0
        self.kills: list[Kill] = []
        self._losses = Counter[str]()

    async def run(self, kills: int, clients: int) -> FaultedLoad:
        address = self._suite.endpoint.frontdoor
        async with (
            open_channel(address, RpcChannelSettings()) as channel,
            AsyncClient(address, retries=NO_RETRIES) as client,
        ):
            load, operator = FaultedLoad(client), FrontdoorClient(channel)
            await load.generate_reference()
            self._reference_s = load.reference_s
            stop = asyncio.Event()
            busy = load.start(clients, stop)
            while len(self.kills) < kills:
                self.kills.append(await self._kill_one(operator))
                print(f"kill {len(self.kills)} of {kills}: {self.kills[-1]}", flush=True)
            stop.set()
            await asyncio.gather(*busy)
            await load.ask_again()
        return load

    async def _kill_one(self, operator: FrontdoorClient) -> Kill:
        """Wait for a worker that may be killed, and for a random moment of its attempt."""
        while True:
            worker = await self._choose(operator)
            if worker is not None:
                async with open_channel(worker.address, RpcChannelSettings()) as channel:
                    kill = await self._kill_at_random(operator, worker, WorkerClient(channel))
                if kill is not None:
                    return kill
            await asyncio.sleep(POLL_S)

    async def _choose(self, operator: FrontdoorClient) -> WorkerView | None:
        """Choose a busy worker at random that has served long enough, if another can take over."""
        now = time.monotonic()
        connected = [worker for worker in (await operator.status()).workers if worker.connected]
        served = {
            worker.worker_id: now - self._first_seen.setdefault((worker.worker_id, worker.worker_generation), now)
            for worker in connected
        }
        ripe = [worker for worker in connected if served[worker.worker_id] > LEAST_SERVED_S and worker.in_flight_count]
        return self._rng.choice(ripe) if ripe and len(connected) > 1 else None

    async def _kill_at_random(self, operator: FrontdoorClient, worker: WorkerView, client: WorkerClient) -> Kill | None:
        """Kill the worker. None if it was idle at the chosen moment, or if the request would not run again."""
        await asyncio.sleep(self._rng.uniform(0.0, self._reference_s))
        running = [attempt for attempt in (await client.status()).attempts if attempt.step_count]
        if not running or any(self._losses[attempt.request_id] >= MADE_UP_FOR for attempt in running):
            return None
        self._losses.update(attempt.request_id for attempt in running)
        os.kill(pid_of(self._suite, worker.address), signal.SIGKILL)
        killed_at = time.monotonic()
        while True:
            if not is_counted_on(worker, (await operator.status()).workers):
                break
            await asyncio.sleep(POLL_S)
        return Kill(worker.worker_id, running[0].step, running[0].step_count, time.monotonic() - killed_at)


def is_counted_on(victim: WorkerView, workers: Iterable[WorkerView]) -> bool:
    return any(
        worker.connected
        and (worker.worker_id, worker.worker_generation) == (victim.worker_id, victim.worker_generation)
        for worker in workers
    )


def pid_of(suite: LocalSuite, address: str) -> int:
    """Return the supervisor's process that listens on that address."""
    for process in psutil.Process(suite.endpoint.supervisor_pid).children(recursive=True):
        if address in process.cmdline():
            return process.pid
    raise RuntimeError(f"no process of the suite listens on {address}")


def figures_of(trial: KillOneTrial, load: FaultedLoad) -> list[Figure]:
    return [
        *request_figures(load),
        measured(
            "from the kill to the worker's ejection, median",
            [kill.ejected_s for kill in trial.kills],
            statistics.median,
            informative("s"),
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
