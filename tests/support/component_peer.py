"""A process that shares a directory of components as a worker does, without a device:
`python -m tests.support.component_peer --directory DIR --listen ADDRESS --controller ADDRESS`.

It reports ten times a second. With `--busy` it has own requests; with `--ends-after N` it is killed when it
reads the N-th block.
"""

import argparse
import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from pentimento.api.components.v1.component_service_pb2_grpc import add_ComponentServiceServicer_to_server
from pentimento.domain.fleet import ReplicaKind
from pentimento.policies.components import Utility
from pentimento.rpc import RpcChannelSettings, RpcServer, RpcServerSettings
from pentimento.service import components
from pentimento.service.components import FULL_NAME, ComponentServicer, ReportedComponents
from pentimento.service.fleet_member import FleetMember
from pentimento.service.process import ServiceProcess
from pentimento.stores.components import ComponentStore


@dataclass(frozen=True)
class Settings:
    controller_address: str
    advertise_address: str
    channels: RpcChannelSettings


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--controller", required=True)
    parser.add_argument("--token-file", type=Path, default=None)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--ends-after", type=int, default=0)
    given = parser.parse_args()
    store, reads = ComponentStore(given.directory, 2**40, 0, Utility), 0

    def read(digest: str, offset: int, size: int) -> bytes | None:
        nonlocal reads
        reads += 1
        if reads == given.ends_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return store.read_range(digest, offset, size)

    server = RpcServer(RpcServerSettings(listen=(given.listen,), token_file=given.token_file), "unet_worker")
    server.add(add_ComponentServiceServicer_to_server, ComponentServicer(read, lambda: given.busy), FULL_NAME)
    member = FleetMember(
        server, ReplicaKind.UNET_WORKER, Settings(given.controller, given.listen, RpcChannelSettings())
    )
    reported = ReportedComponents(store.held)
    registration = member.registration(reported=reported.added_to, news=reported.news)
    process = ServiceProcess(server=server, registration=registration)

    async def report_often() -> None:
        while registration is not None:
            registration.report_soon()
            await asyncio.sleep(0.1)

    process.run_beside(reported.run, "components")
    process.run_beside(report_often, "reports")
    await process.run()


if __name__ == "__main__":
    components.LOOK_S = 0.1
    asyncio.run(main())
