"""Run a suite of paced devices: a controller, ControlNet replicas, workers and a frontdoor, as separate processes."""

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suites.instant import free_port
from benchmarks.suites.limited_link import LimitedLink
from lab.fixtures.worker_process import START_S, start_on
from pentimento.clients.controller import ControllerClient
from pentimento.domain.errors import PentimentoError
from pentimento.rpc import RpcChannelSettings, open_channel

LOOK_S = 0.2
# Free in the namespaces that a link connects: nothing else listens on its addresses.
CONTROLLER_PORT, FIRST_REPLICA_PORT = 7001, 7100


@dataclass(frozen=True)
class PacedSuite:
    """Name the addresses of its controller, of its frontdoors by name, and of its workers' metrics, if they have
    some."""

    frontdoors: Mapping[str, str]
    controller: str
    metrics: tuple[str, ...] = ()

    @property
    def frontdoor(self) -> str:
        """Return the address of the first frontdoor."""
        return next(iter(self.frontdoors.values()))


@contextmanager
def paced_suite(
    pace: Path,
    worker_count: int,
    replica_count: int,
    resident: Sequence[str] = (),
    max_batch: int = 1,
    *,
    link: LimitedLink | None = None,
    frontdoors: Mapping[str, Sequence[str]] = {"frontdoor": ()},
    lora_memory_mib: int = 0,
    worker_module: str = "lab.emulation.paced_worker",
    measures: bool = False,
) -> Iterator[PacedSuite]:
    """Start workers and ControlNet replicas of a pace with all that they need; stop them in the end.

    Replicas begin with the `resident` ControlNets, at the far end of `link` if there is one. Workers run up to
    `max_batch` images at a time; without `lora_memory_mib` they read every LoRA again. `frontdoors` have their flags by
    name. `measures`: whether workers have metrics.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pmt-", dir="/dev/shm")))
        (folder / "shared").mkdir(mode=0o700)
        controller = f"unix:{folder}/controller"
        torch = ("--device", "cpu", "--shared-memory-dir", str(folder / "shared"))
        objects = ("--objects-url", f"file://{folder}/objects")

        def run(module: str, name: str, *flags: str, listen: str = "", enter: Sequence[str] = ()) -> None:
            at = listen or f"unix:{folder}/{name}"
            command = [*enter, sys.executable, "-m", module, "--listen", at, "--instance-id", name]
            process = stack.enter_context(start_on(None, [*command, "--log-level", "warning", *flags]))
            stack.callback(process.terminate)

        member = ("--controller-address", controller)
        of_replica = ["--controlnets", str(pace), "--prefetch", ",".join(resident), "--memory-budget-mib", "20000"]
        if link is None:
            run("services.controller", "controller")
            of_replica += [*torch, *member]
        else:
            reached = f"{link.near}:{CONTROLLER_PORT}"
            run("services.controller", "controller", listen=f"{controller},{reached}")
            # Memory is not shared with another host.
            of_replica += ["--device", "cpu", "--shared-memory-dir", "", "--controller-address", reached]
        for number in range(replica_count):
            listen = "" if link is None else f"{link.far}:{FIRST_REPLICA_PORT + number}"
            enter = () if link is None else link.enter
            name = f"controlnet-{number}"
            run("lab.emulation.paced_controlnets", name, *of_replica, listen=listen, enter=enter)
        of_worker: tuple[str, ...] = ("--model", str(pace), "--max-batch", str(max_batch))
        of_worker = (*of_worker, "--lora-memory-mib", str(lora_memory_mib), *torch, *objects, *member)
        metrics = tuple(f"127.0.0.1:{free_port()}" for _ in range(worker_count)) if measures else ()
        for number in range(worker_count):
            told = ("--metrics-listen", metrics[number]) if metrics else ()
            run(worker_module, f"worker-{number}", *of_worker, *told)
        for name, flags in frontdoors.items():
            # Workers follow one journal for each frontdoor's id, and objects belong to one.
            own = ("--frontdoor-id", name, "--objects-url", f"file://{folder}/objects-{name}")
            ledger = ("--ledger-url", f"sqlite:///{folder}/{name}.sqlite", "--worker-wait-s", "0")
            run("services.frontdoor", name, *ledger, *own, *member, *flags)
        yield PacedSuite({name: f"unix:{folder}/{name}" for name in frontdoors}, controller, metrics)


async def await_live(suite: PacedSuite, replica_count: int) -> None:
    """Return once the controller knows `replica_count` live replicas of all kinds. Raises TimeoutError otherwise."""
    async with open_channel(suite.controller, RpcChannelSettings()) as channel, asyncio.timeout(START_S):
        client, live_count = ControllerClient(channel), 0
        while live_count < replica_count:
            await asyncio.sleep(LOOK_S)
            live_count = await _live_count(client)


async def _live_count(client: ControllerClient) -> int:
    try:
        return sum(status.live for status in (await client.fleet()).replicas)
    except PentimentoError:
        return 0
