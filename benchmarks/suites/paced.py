"""Run a suite of paced devices: a controller, ControlNet replicas, workers and a frontdoor, as separate processes."""

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.fixtures.worker_process import START_S, start_on
from pentimento.clients.controller import ControllerClient
from pentimento.domain.errors import PentimentoError
from pentimento.rpc import RpcChannelSettings, open_channel

LOOK_S = 0.2


@dataclass(frozen=True)
class PacedSuite:
    """Name the addresses of its frontdoor and its controller."""

    frontdoor: str
    controller: str


@contextmanager
def paced_suite(
    pace: Path, worker_count: int, replica_count: int, resident: Sequence[str] = (), max_batch: int = 1
) -> Iterator[PacedSuite]:
    """Start workers and ControlNet replicas of a pace with all that they need; stop them in the end.

    Replicas begin with the `resident` ControlNets. Workers run up to `max_batch` images at a time and read every LoRA
    again.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pmt-", dir="/dev/shm")))
        (folder / "shared").mkdir(mode=0o700)
        controller, frontdoor = f"unix:{folder}/controller", f"unix:{folder}/frontdoor"
        torch = ("--device", "cpu", "--shared-memory-dir", str(folder / "shared"))
        objects = ("--objects-url", f"file://{folder}/objects")

        def run(module: str, name: str, *flags: str) -> None:
            command = [sys.executable, "-m", module, "--listen", f"unix:{folder}/{name}", "--instance-id", name]
            process = stack.enter_context(start_on(None, [*command, "--log-level", "warning", *flags]))
            stack.callback(process.terminate)

        run("services.controller", "controller")
        member = ("--controller-address", controller)
        of_replica = ("--controlnets", str(pace), "--prefetch", ",".join(resident), "--memory-budget-mib", "20000")
        for number in range(replica_count):
            run("lab.emulation.paced_controlnets", f"controlnet-{number}", *of_replica, *torch, *member)
        of_worker = ("--model", str(pace), "--max-batch", str(max_batch), "--warm-up-s", "0", "--lora-memory-mib", "0")
        for number in range(worker_count):
            run("lab.emulation.paced_worker", f"worker-{number}", *of_worker, *torch, *objects, *member)
        ledger = ("--ledger-url", f"sqlite:///{folder}/frontdoor.sqlite", "--worker-wait-s", "0")
        run("services.frontdoor", "frontdoor", *ledger, *objects, *member)
        yield PacedSuite(frontdoor, controller)


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
