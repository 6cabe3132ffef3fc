"""Serve an emulated worker and discriminator over Unix sockets in this process: real servers, channels and stores."""

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.emulation.emulated_worker.backend import EmulatedBackend
from lab.emulation.emulated_worker.device_news import LoopTimers
from lab.emulation.emulated_worker.settings import EmulatedWorkerSettings
from lab.emulation.emulated_worker.wiring import wire
from pentimento.clients.worker import WorkerClient
from pentimento.domain.fleet import HeldModel
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from services.unet_worker.process import WorkerProcess

FLEET = """\
seed = 3

[[models]]
name = "light"
steps = 1
guidance_scale = 1.0
latency_s = { 1 = 0.001 }
load_s = 0.001

[[models]]
name = "heavy"
steps = 10
latency_s = { 1 = 0.01, 2 = 0.012 }
quality = 0.6

[[devices]]
name = "small"
models = ["heavy", "light"]
memory_bytes = 1000

[discriminator]
score_s = 0.001
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short: a Unix socket lies in it."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        yield Path(folder)


@pytest.fixture
def fleet_file(directory: Path) -> Path:
    (directory / "fleet.toml").write_text(FLEET)
    return directory / "fleet.toml"


@dataclass(frozen=True)
class Emulated:
    process: WorkerProcess
    client: WorkerClient

    @property
    def held(self) -> HeldModel:
        return self.process.worker.loaded.held

    @property
    def backend(self) -> EmulatedBackend:
        backend = self.process.worker.loaded
        assert isinstance(backend, EmulatedBackend)
        return backend


@asynccontextmanager
async def serve(fleet_file: Path, **settings: Any) -> AsyncIterator[Emulated]:
    directory = fleet_file.parent
    address = f"unix:{directory / 'w'}"
    rpc, channels = RpcServerSettings(listen=(address,)), RpcChannelSettings()
    objects_url = f"file://{directory / 'objects'}"
    process = wire(
        EmulatedWorkerSettings(rpc, channels, Path(f"{fleet_file}#small"), objects_url=objects_url, **settings),
        progress_interval_s=0.0,
    )
    await process.server.start()
    try:
        await process.warm()
        process.server.set_serving()
        async with open_channel(address, channels) as channel:
            yield Emulated(process, WorkerClient(channel))
    finally:
        await process.close()
        await process.server.stop()


@contextmanager
def held_steps() -> Iterator[Callable[[], None]]:
    """Keep steps of emulated devices from ending until the yielded function is called; leaving the block calls it."""
    at, kept, held = LoopTimers.at, [], [True]

    def at_or_kept(timers: LoopTimers, time_s: float, action: Callable[[Any], None], argument: Any = None) -> None:
        if held and action.__name__ == "_end":
            kept.append((timers, time_s, action, argument))
        else:
            at(timers, time_s, action, argument)

    def let_go() -> None:
        held.clear()
        while kept:
            at(*kept.pop())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopTimers, "at", at_or_kept)
        try:
            yield let_go
        finally:
            let_go()


@pytest.fixture
async def worker(fleet_file: Path) -> AsyncIterator[Emulated]:
    async with serve(fleet_file) as served:
        yield served


@pytest.fixture
async def adapted_worker(fleet_file: Path) -> AsyncIterator[Emulated]:
    """Run a worker with LoRAs and ControlNets; each change of its weights takes 4 ms."""
    table = '[adapters]\nloras = ["neon", "mosaic"]\nload_s = 0.001\npatch_s = 0.004\nresidual_wait_s = 0.001\n'
    fleet_file.write_text(FLEET + table)
    async with serve(fleet_file) as served:
        yield served
