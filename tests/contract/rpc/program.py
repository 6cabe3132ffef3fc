"""Run a small service as a process: `python -m tests.contract.rpc.program --listen unix:… [--warm MODE] [--drain
MODE]`."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum

from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker
from pentimento.api.worker.v1 import unet_worker_service_pb2_grpc as worker_grpc
from pentimento.domain.errors import FailedPrecondition
from pentimento.rpc import RpcServer, RpcServerSettings, run_service
from pentimento.settings import load_settings, setting
from tests.contract.rpc.scripted import WORKER, Worker


class Warm(Enum):
    AT_ONCE = "at_once"
    NEVER = "never"
    FAILS = "fails"
    BREAKS = "breaks"
    TELLS = "tells"


class Drain(Enum):
    AT_ONCE = "at_once"
    NEVER = "never"


@dataclass(frozen=True)
class Settings:
    rpc: RpcServerSettings
    warm: Warm = setting(Warm.AT_ONCE, help="how the start goes")
    drain: Drain = setting(Drain.AT_ONCE, help="how the drain goes")


async def endless(request: object) -> AsyncIterator[worker.WatchCreditsResponse]:
    yield worker.WatchCreditsResponse(worker_id="open")
    await asyncio.Event().wait()


async def main(argv: list[str]) -> None:
    settings = load_settings(Settings, "program", argv)
    server = RpcServer(settings.rpc, "program")
    server.add(worker_grpc.add_UnetWorkerServiceServicer_to_server, Worker(endless), WORKER)

    async def warm() -> None:
        say("warming")
        if settings.warm is Warm.NEVER:
            await asyncio.Event().wait()
        if settings.warm is Warm.FAILS:
            raise FailedPrecondition("WEIGHTS_CORRUPT", "unet.safetensors: the weights\nare corrupt")
        if settings.warm is Warm.BREAKS:
            raise ValueError("canary")
        if settings.warm is Warm.TELLS:
            say(f"frozen {gc.get_freeze_count() > 0}, switches after {sys.getswitchinterval()} s")

    async def drain() -> None:
        say("draining")
        if settings.drain is Drain.NEVER:
            await asyncio.Event().wait()
        say("drained")

    await server.run_until_stopped(warm, drain)


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run_service(main)
