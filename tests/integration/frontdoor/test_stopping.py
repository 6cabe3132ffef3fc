"""Test drains, slow readers, and a real controller that stops and restarts."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker
from pentimento.clients.controller import ControllerClient, Registration
from pentimento.domain.errors import Unavailable
from pentimento.domain.fleet import Replica, ReplicaKind, ReplicaReport
from pentimento.domain.image_request import Completed
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from services.controller.settings import ControllerSettings
from services.controller.wiring import ControllerProcess, wire


async def test_drain_waits_for_accepted_requests_and_refuses_new_ones(
    suite: FrontdoorSuite, worker: PacedWorker
) -> None:
    worker.hold.clear()
    generating = asyncio.ensure_future(suite.paint())
    await worker.wait_until(lambda: worker.running)
    draining = asyncio.ensure_future(suite.frontdoor.drain())
    await asyncio.sleep(0)

    with pytest.raises(Unavailable) as caught:
        await suite.paint()
    worker.hold.set()

    assert caught.value.reason == "DRAINING"
    assert (await generating).image
    await draining


async def test_request_left_by_drain_completes_after_restart(folder: Path, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with running_suite(folder) as suite:
        stream = suite.client.generate(REQUEST, "key")
        request_id = await suite.accepted(stream)
        await worker.wait_until(lambda: worker.running)
        draining = asyncio.ensure_future(suite.frontdoor.drain())
        await asyncio.sleep(0)
        draining.cancel()
    worker.hold.set()

    async with running_suite(folder) as suite:
        *_, last = await suite.events(idempotency_key="key")

    assert isinstance(last, Completed)
    assert last.request_id == request_id


def calls_ended(code: str) -> float:
    labels = {"method": "/pentimento.api.image.v1.ImageService/Generate", "code": code}
    return REGISTRY.get_sample_value("pentimento_rpc_requests_total", labels) or 0.0


@pytest.mark.slow
async def test_client_that_reads_nothing_is_disconnected(folder: Path, worker: PacedWorker) -> None:
    """An image larger than any flow-control window blocks the stream."""
    worker.picture_bytes = 24 << 20
    before = calls_ended("CANCELLED")
    async with running_suite(folder, stream_idle_s=1.0) as suite:
        stream = suite.client.generate(REQUEST)
        await suite.accepted(stream)

        async with asyncio.timeout(120):
            await until(lambda: calls_ended("CANCELLED") > before)

        assert calls_ended("CANCELLED") == before + 1
        assert (await suite.operator.status()).completed_count == 1
        await stream.aclose()


async def start_controller(address: str) -> ControllerProcess:
    process = wire(ControllerSettings(RpcServerSettings(listen=(address,)), plan_interval_s=0.05))
    await process.server.start()
    await process.warm()
    process.server.set_serving()
    return process


async def test_plan_finds_workers_and_applies_without_controller(folder: Path, worker: PacedWorker) -> None:
    address = f"unix:{folder / 'c'}"
    controller = await start_controller(address)
    replica = Replica("w1", ReplicaKind.UNET_WORKER, f"unix:{folder / 'w1'}", 1, resident_models=("tiny",))
    async with open_channel(address, RpcChannelSettings()) as channel:
        registration = Registration(
            ControllerClient(channel), lambda: replica, lambda: ReplicaReport("w1", 1, ("tiny",))
        )
        registration.start()
        async with running_suite(folder, worker_addresses=(), controller_address=address) as suite:
            planned = await suite.paint()
            await controller.drain()
            await controller.server.stop()
            unplanned = await suite.paint()
        await registration.close()

    assert planned.provenance.route.plan_version.sequence > 0
    assert unplanned.provenance.route.plan_version >= planned.provenance.route.plan_version


@pytest.mark.slow
async def test_controller_receives_the_demand(folder: Path, worker: PacedWorker) -> None:
    address = f"unix:{folder / 'c'}"
    controller = await start_controller(address)
    async with running_suite(folder, controller_address=address) as suite:
        await suite.paint()
        async with open_channel(address, RpcChannelSettings()) as channel:
            client = ControllerClient(channel)
            while True:
                frontdoors = [
                    status for status in (await client.fleet()).replicas if status.replica.kind is ReplicaKind.FRONTDOOR
                ]
                if frontdoors and frontdoors[0].completed_count == 1:
                    break
                await asyncio.sleep(0.02)
    await controller.drain()
    await controller.server.stop()
