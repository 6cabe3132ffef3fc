"""Test the registration that all services share."""

import asyncio
import socket
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pentimento.clients.controller import ControllerClient
from pentimento.domain.fleet import Replica, ReplicaKind
from pentimento.rpc import RpcChannelSettings, RpcServer, RpcServerSettings, open_channel
from pentimento.service.fleet_member import FleetMember
from services.controller.settings import ControllerSettings
from services.controller.wiring import wire


@dataclass(frozen=True)
class Found:
    """The addresses of the controller and of the service itself."""

    controller_address: str = ""
    advertise_address: str = ""
    channels: RpcChannelSettings = field(default_factory=RpcChannelSettings)


def server(folder: Path) -> RpcServer:
    return RpcServer(RpcServerSettings(listen=(f"unix:{folder / 's'}",), instance_id="e1"), "embedder")


async def test_registration_wildcard_listener_advertises_the_hostname() -> None:
    mine = RpcServer(RpcServerSettings(listen=("0.0.0.0:0",)), "embedder")
    await mine.start()
    (bound,) = mine.bound_addresses
    address = FleetMember(mine, ReplicaKind.EMBEDDER, Found()).address
    await mine.stop()

    assert address == f"{socket.gethostname()}:{bound.rpartition(':')[2]}"


def test_without_a_controller_there_is_no_registration(tmp_path: Path) -> None:
    member = FleetMember(server(tmp_path), ReplicaKind.EMBEDDER, Found())

    assert member.controller is None
    assert member.registration() is None


@pytest.mark.parametrize(("advertised", "address"), [("", "unix:{}/s"), ("embedder:50", "embedder:50")])
async def test_member_registers_description_of_its_service(tmp_path: Path, advertised: str, address: str) -> None:
    controller_address = f"unix:{tmp_path / 'c'}"
    controller = wire(ControllerSettings(RpcServerSettings(listen=(controller_address,))))
    await controller.server.start()
    await controller.warm()
    mine = server(tmp_path)
    await mine.start()
    member = FleetMember(mine, ReplicaKind.EMBEDDER, Found(controller_address, advertised))
    registration = member.registration(
        lambda replica: replace(replica, device="cpu"), lambda report: replace(report, running_count=3)
    )
    assert registration is not None

    registration.start()
    async with open_channel(controller_address, RpcChannelSettings()) as channel:
        client = ControllerClient(channel)
        while not (replicas := (await client.fleet()).replicas) or not replicas[0].running_count:
            registration.report_soon()
    await registration.close()
    await controller.drain()
    await controller.server.stop()
    await mine.stop()

    (status,) = replicas
    expected = Replica("e1", ReplicaKind.EMBEDDER, address.format(tmp_path), member.generation, device="cpu")
    assert (status.replica, status.running_count) == (expected, 3)


async def test_report_counts_the_service_s_running_calls_and_no_health_checks(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'c'}"
    controller = wire(ControllerSettings(RpcServerSettings(listen=(address,))))
    await controller.server.start()
    await controller.warm()
    counts: asyncio.Queue[int] = asyncio.Queue()
    member = FleetMember(controller.server, ReplicaKind.EMBEDDER, Found(address))
    registration = member.registration(reported=lambda report: counts.put_nowait(report.running_count) or report)
    assert registration is not None
    async with open_channel(address, RpcChannelSettings()) as channel:
        health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await health.read()
        async with aclosing(ControllerClient(channel).watch_plan("f1")) as plans:
            await anext(plans)
            registration.start()
            # The report is itself no call yet: only the stream of plans runs.
            count = await asyncio.wait_for(counts.get(), 60)
        health.cancel()
    await registration.close()
    await controller.drain()
    await controller.server.stop()

    assert count == 1
