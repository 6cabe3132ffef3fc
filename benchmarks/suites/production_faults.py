"""Disturb a suite in its production form: processes, PostgreSQL, object store, network, clocks, descriptors,
memory, disks."""

import asyncio
import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress

import httpx
import psutil

from benchmarks.suites.faulty_link import LinkFault
from benchmarks.suites.host_faults import (
    can_slow_disks,
    can_step_clocks,
    exhausted_descriptors,
    exhausted_memory,
    full_disk,
    slow_disk,
)
from benchmarks.suites.production import CONTROLNETS, ProductionSuite
from benchmarks.suites.production_load import ProductionLoad
from benchmarks.suites.virtual_switch import Disturbance
from pentimento.sdk import AsyncClient, RetryPolicy

PATIENT = RetryPolicy(tries=10_000, first_pause_s=0.1, max_pause_s=1.0)
PAUSE_S = (0.2, 4.0)
LASTS_S = (0.2, 6.0)
# Longer than every lease, and at times than the wait for a silent database.
NETWORK_LASTS = 2.0
POSTGRESQL, OBJECTS, NETWORK = "postgresql", "object store", "network"
RESTART, FAILOVER, STANDBY, DISK = "restart", "failover", "standby stopped", "full disk"
STORE_FAULTS = (LinkFault.OUTAGE, LinkFault.SLOW, LinkFault.WRONG)
FRONTDOOR, CONTROLLER, GATEWAY, EDGE, WORKER = "frontdoor", "controller", "gateway", "edge", "tiny-heavy-0"
SHARED_MEMORY, UNDISTURBED = "shared memory", f"controlnet-{CONTROLNETS - 1}"
# A service with a standby means its active process.
PARTITIONS = {
    "frontdoor from database": (FRONTDOOR, "database"),
    "frontdoor from workers": (FRONTDOOR, "workers"),
    "gateway from frontdoors": (GATEWAY, "frontdoors"),
    "edge from frontdoor": (EDGE, "entrance"),
}
LOSS, DELAY = "loss", "delay"
CLOCKS = {"clock forward": 300, "clock back": -300}
DESCRIPTORS, MEMORY, SLOW_DISK = "no descriptors", "no memory", "slow disk"
POLL_S = 0.1


def kinds_of(processes: Iterator[str] | list[str], clocks: bool, disks: bool) -> list[tuple[str, str]]:
    """Return each target with each kind of its faults; clocks are stepped only if `clocks`, disks slowed if `disks`."""
    found = [(name, kind) for name in processes if name != UNDISTURBED for kind in ("SIGKILL", "SIGSTOP")]
    found += [(POSTGRESQL, kind) for kind in (RESTART, FAILOVER, STANDBY, DISK)]
    found += [(OBJECTS, fault.value) for fault in STORE_FAULTS]
    found += [(NETWORK, kind) for kind in PARTITIONS]
    found += [(name, kind) for name in (FRONTDOOR, EDGE) for kind in (LOSS, DELAY)]
    found += [(name, kind) for name in (FRONTDOOR, CONTROLLER, GATEWAY, WORKER) for kind in CLOCKS if clocks]
    found += [(name, kind) for name in (FRONTDOOR, CONTROLLER, GATEWAY, EDGE, WORKER) for kind in (DESCRIPTORS, MEMORY)]
    found += [(name, SLOW_DISK) for name in (POSTGRESQL, GATEWAY) if disks]
    return [*found, (GATEWAY, DISK), (SHARED_MEMORY, DISK)]


def disturbance_of(target: str, kind: str, addresses: dict[str, tuple[str, ...]]) -> Disturbance:
    """Return the network's disturbance for a fault; `addresses`: by process and by group."""
    if kind in PARTITIONS:
        near, far = PARTITIONS[kind]
        return Disturbance(apart=tuple((one, other) for one in addresses[near] for other in addresses[far]))
    (address,) = addresses[target]
    return Disturbance(lossy=address) if kind == LOSS else Disturbance(late=address)


class ProductionTrial:
    """Apply faults in a drawn order, each kind to each target before any repeats. `ends`: set to end early; `failed`:
    errors that ended clients or the faults."""

    def __init__(self, suite: ProductionSuite, rng: random.Random) -> None:
        self._suite = suite
        self._rng = rng
        self.ends = asyncio.Event()
        self.kinds: Counter[tuple[str, str]] = Counter()
        self.failed: list[str] = []
        self.kills = 0

    @property
    def faults(self) -> int:
        """Return the number of faults so far."""
        return self.kinds.total()

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
            while self.faults < faults and not self.ends.is_set() and not any(task.done() for task in busy):
                await asyncio.sleep(self._rng.uniform(*PAUSE_S))
                target, kind = next(drawn)
                at_s = time.monotonic() - began
                try:
                    await self._disturb(target, kind)
                except Exception:
                    # The measurements so far stay valid.
                    self.failed.append(f"{target}: {kind}: {traceback.format_exc()}")
                    break
                self.kinds[target, kind] += 1
                done = sum(bool(sample.images) for sample in load.samples)
                lasted_s = time.monotonic() - began - at_s
                print(
                    f"fault {self.faults} of {faults} at {at_s:.0f} s for {lasted_s:.1f} s: {target}: {kind};"
                    f" {done} images of {len(load.samples)}",
                    flush=True,
                )
            stop.set()
            for error in await asyncio.gather(*busy, return_exceptions=True):
                if isinstance(error, BaseException):
                    self.failed.append("".join(traceback.format_exception(error)))
            await load.ask_again()
        return load

    def _drawn(self) -> Iterator[tuple[str, str]]:
        """Yield targets and kinds of faults: each once in a drawn order, then each again in another."""
        kinds = kinds_of(list(self._suite.processes), can_step_clocks(), can_slow_disks())
        while True:
            yield from self._rng.sample(kinds, len(kinds))

    async def _disturb(self, target: str, kind: str) -> None:
        lasts_s = self._rng.uniform(*LASTS_S)
        if target == POSTGRESQL:
            await self._disturb_postgresql(kind, lasts_s)
        elif target == OBJECTS:
            self._suite.objects.disturb(LinkFault(kind))
            await asyncio.sleep(lasts_s)
            self._suite.objects.disturb(LinkFault.NONE)
        elif target == NETWORK or kind in (LOSS, DELAY):
            self._suite.network.disturb(disturbance_of(target, kind, self._addresses()))
            await asyncio.sleep(lasts_s * NETWORK_LASTS)
            self._suite.network.disturb(Disturbance())
        elif kind in CLOCKS:
            clock = self._suite.processes[self._suite.leader(target)].clock
            clock.step(CLOCKS[kind])
            await asyncio.sleep(lasts_s)
            clock.step(0)
        elif kind == DISK:
            with full_disk(self._suite.shared if target == SHARED_MEMORY else self._suite.index):
                await asyncio.sleep(lasts_s)
        elif kind in (DESCRIPTORS, MEMORY, SLOW_DISK):
            process = await self._running(self._suite.leader(target))
            with _pressed(process, kind):
                await asyncio.sleep(lasts_s)
        else:
            await self._signal(target, kind, lasts_s)

    async def _disturb_postgresql(self, kind: str, lasts_s: float) -> None:
        server = self._suite.server
        if kind == FAILOVER:
            await asyncio.to_thread(server.fail_over)
            # Commits wait until there is a standby again.
            await asyncio.sleep(lasts_s / 3)
            await asyncio.to_thread(server.rebuild_standby)
        elif kind == RESTART:
            await asyncio.to_thread(server.primary.stop)
            await asyncio.sleep(lasts_s / 3)
            await asyncio.to_thread(server.primary.start)
        elif kind == STANDBY:
            with ExitStack() as stack:
                for process in server.standby.processes():
                    process.suspend()
                    stack.callback(process.resume)
                await asyncio.sleep(lasts_s)
        elif kind == SLOW_DISK:
            with slow_disk(server.primary.processes()):
                await asyncio.sleep(lasts_s)
        else:
            with full_disk(server.primary.socket_directory):
                await asyncio.sleep(lasts_s)
            await asyncio.to_thread(server.recover)

    def _addresses(self) -> dict[str, tuple[str, ...]]:
        """Return the addresses of the processes that faults name, and of groups."""
        network, names = self._suite.network, self._suite.processes
        _, _, entrance, *databases = network.near
        found: dict[str, tuple[str, ...]] = {
            name: (network.address(self._suite.leader(name)),) for name in (FRONTDOOR, GATEWAY, EDGE)
        }
        groups = {"workers": "tiny-heavy-", "frontdoors": "frontdoor-"}
        for group, prefix in groups.items():
            found[group] = tuple(network.address(name) for name in names if name.startswith(prefix))
        return found | {"database": tuple(databases), "entrance": (entrance,)}

    async def _running(self, name: str) -> psutil.Process:
        """Return the process, which starts again by itself."""
        while (process := self._suite.processes[name].process) is None:  # noqa: ASYNC110 - it starts again by itself
            await asyncio.sleep(POLL_S)
        return process

    async def _signal(self, name: str, kind: str, lasts_s: float) -> None:
        process = await self._running(name)
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


def _pressed(process: psutil.Process, kind: str) -> AbstractContextManager[None]:
    """Return a context: the process lacks descriptors or memory, or has a slow disk with its children."""
    if kind == SLOW_DISK:
        with suppress(psutil.Error):
            return slow_disk([process, *process.children(recursive=True)])
        return nullcontext()
    return exhausted_memory(process) if kind == MEMORY else exhausted_descriptors(process)
