"""Run the frontdoor and paced workers as processes that tests kill and stop."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.processes import Process, StartedProcesses


class Processes:
    """Kill every started process after the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes = StartedProcesses()

    def address(self, name: str) -> str:
        return f"unix:{self.folder / name}"

    def worker(self, name: str, step_s: float = 0.02) -> Process:
        return self._start(name, "lab.fixtures.paced_worker", self.address(name), name, str(step_s))

    def real_worker(self, name: str, model: Path) -> Process:
        """Start a real worker, with a checkpoint of a few thousand parameters."""
        objects = f"file://{self.folder / 'objects'}"
        flags = ("--listen", self.address(name), "--model", str(model), "--objects-url", objects)
        return self._start(name, "services.unet_worker", *flags)

    def frontdoor(self, *workers: str, flags: tuple[str, ...] = ()) -> Process:
        return self._start(
            "frontdoor",
            "services.frontdoor",
            *("--listen", self.address("f"), "--ledger-url", f"sqlite:///{self.folder / 'journal.sqlite'}"),
            *("--objects-url", f"file://{self.folder / 'objects'}"),
            *("--worker-addresses", ",".join(self.address(name) for name in workers), "--worker-wait-s", "20"),
            *flags,
        )

    def _start(self, name: str, module: str, *arguments: str) -> Process:
        return self._processes.start(module, *arguments, log=self.folder / f"{name}.log")

    def end(self) -> None:
        self._processes.end()


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    started = Processes(folder)
    try:
        yield started
    finally:
        started.end()


async def serving(address: str) -> None:
    """Wait until the process answers SERVING."""
    async with grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                answer = await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=120)
            except grpc.aio.AioRpcError:
                answer = None
            if answer is not None and answer.status == health_pb2.HealthCheckResponse.SERVING:
                return
            await asyncio.sleep(0.02)


def kill(process: Process) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
