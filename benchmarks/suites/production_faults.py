"""Disturb a suite in its production form: its processes, PostgreSQL, and the link to the object store."""

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import psutil

from benchmarks.suites.faulty_link import LinkFault
from benchmarks.suites.production import ProductionSuite
from benchmarks.suites.production_load import ProductionLoad
from pentimento.sdk import AsyncClient, RetryPolicy

PATIENT = RetryPolicy(tries=10_000, first_pause_s=0.1, max_pause_s=1.0)
PAUSE_S = (0.2, 4.0)
LASTS_S = (0.2, 6.0)
POSTGRESQL, OBJECTS = "postgresql", "object store"
STORE_FAULTS = (LinkFault.OUTAGE, LinkFault.SLOW, LinkFault.WRONG)
POLL_S = 0.1


class ProductionTrial:
    """Apply faults in a drawn order, each kind to each target before any repeats."""

    def __init__(self, suite: ProductionSuite, rng: random.Random) -> None:
        self._suite = suite
        self._rng = rng
        self.kinds: set[tuple[str, str]] = set()
        self.kills = 0

    async def run(self, faults: int, clients: int) -> ProductionLoad:
        """Run the load with its faults, and wait for its end."""
        async with (
            AsyncClient(self._suite.address, retries=PATIENT) as client,
            httpx.AsyncClient(base_url=f"http://{self._suite.http}") as http,
        ):
            load = ProductionLoad(client, http)
            await load.generate_reference()
            stop = asyncio.Event()
            busy = load.start(clients, stop)
            drawn = self._drawn()
            began = time.monotonic()
            for number in range(1, faults + 1):
                await asyncio.sleep(self._rng.uniform(*PAUSE_S))
                for failed in (task for task in busy if task.done()):
                    failed.result()
                target, kind = next(drawn)
                await self._disturb(target, kind)
                self.kinds.add((target, kind))
                done = sum(bool(sample.images) for sample in load.samples)
                print(
                    f"fault {number} of {faults} at {time.monotonic() - began:.0f} s: {target}: {kind}; {done} images"
                    f" of {len(load.samples)}",
                    flush=True,
                )
            stop.set()
            await asyncio.gather(*busy)
            await load.ask_again()
        return load

    def _drawn(self) -> Iterator[tuple[str, str]]:
        """Yield targets and kinds of faults: each once in a drawn order, then each again in another."""
        kinds = [(name, kind) for name in self._suite.processes for kind in ("SIGKILL", "SIGSTOP")]
        kinds += [(POSTGRESQL, "restart"), *((OBJECTS, fault.value) for fault in STORE_FAULTS)]
        while True:
            yield from self._rng.sample(kinds, len(kinds))

    async def _disturb(self, target: str, kind: str) -> None:
        lasts_s = self._rng.uniform(*LASTS_S)
        if target == POSTGRESQL:
            await asyncio.to_thread(self._suite.server.stop)
            await asyncio.sleep(lasts_s / 3)
            await asyncio.to_thread(self._suite.server.start)
        elif target == OBJECTS:
            self._suite.objects.disturb(LinkFault(kind))
            await asyncio.sleep(lasts_s)
            self._suite.objects.disturb(LinkFault.NONE)
        else:
            await self._signal(target, kind, lasts_s)

    async def _signal(self, name: str, kind: str, lasts_s: float) -> None:
        while (process := self._suite.processes[name].process) is None:  # noqa: ASYNC110 - it starts again by itself
            await asyncio.sleep(POLL_S)
        self.kills += kind == "SIGKILL"
        with suppress(psutil.Error):
            # A service's own children stop and end with it, as on a host that does.
            family = [process, *process.children(recursive=True)]
            for member in family:
                member.send_signal(signal.Signals[kind])
            if kind == "SIGSTOP":
                await asyncio.sleep(lasts_s)
                for member in family:
                    with suppress(psutil.Error):
                        member.resume()
