"""A request for a model without workers waits for the worker that an autoscaler starts."""

import asyncio
from pathlib import Path

import grpc
import pytest

from lab.fixtures.frontdoor_suite import REQUEST, running_suite, until
from lab.fixtures.paced_worker import PacedWorker, serve
from pentimento.api.keda import externalscaler_pb2 as pb
from pentimento.api.keda.externalscaler_pb2_grpc import ExternalScalerStub
from pentimento.clients.controller import ControllerClient
from pentimento.clients.registration import Registration
from pentimento.domain.errors import Unavailable
from pentimento.domain.fleet import Replica, ReplicaKind, ReplicaReport
from pentimento.domain.image_request import Completed, ImageRequest
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from services.controller.settings import ControllerSettings
from services.controller.wiring import ControllerProcess, wire

WAITING = ImageRequest(prompt="a red circle", seed=1, deadline_ms=120_000)


async def start_controller(folder: Path, *scaled: str) -> ControllerProcess:
    """A lease of one second: the policy begins two seconds after the start."""
    settings = ControllerSettings(
        RpcServerSettings(listen=(f"unix:{folder / 'c'}",)),
        lease_s=1.0,
        plan_interval_s=0.1,
        scaler_listen=(f"unix:{folder / 's'}",),
        scaled_models=scaled,
    )
    process = wire(settings)
    await process.server.start()
    await process.warm()
    process.server.set_serving()
    return process


async def until_active(keda: ExternalScalerStub) -> None:
    """Return once KEDA would start a worker."""
    ref = pb.ScaledObjectRef(scalerMetadata={"service": "unet_worker", "models": "tiny"})
    while True:
        try:
            async for told in keda.StreamIsActive(ref):
                if told.result:
                    return
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_request_for_a_model_without_workers_waits_for_the_one_that_an_autoscaler_starts(folder: Path) -> None:
    controller = await start_controller(folder, "tiny")
    worker = PacedWorker("w1")  # type: ignore[abstract]
    replica = Replica("w1", ReplicaKind.UNET_WORKER, f"unix:{folder / 'w1'}", 1, resident_models=("tiny",))
    settings = {"worker_addresses": (), "worker_wait_s": 0.0, "controller_address": f"unix:{folder / 'c'}"}
    async with (
        open_channel(f"unix:{folder / 'c'}", RpcChannelSettings()) as channel,
        grpc.aio.insecure_channel(f"unix:{folder / 's'}") as scaler,
        running_suite(folder, default_model="tiny", **settings) as suite,
        asyncio.timeout(120),
    ):
        await until(lambda: "tiny" in suite.frontdoor.parts.dataplane.state.index.unstaffed)
        first = asyncio.create_task(suite.paint(WAITING))
        await until_active(ExternalScalerStub(scaler))
        assert not first.done()
        server = await serve(worker, f"unix:{folder / 'w1'}")
        registration = Registration(
            ControllerClient(channel), lambda: replica, lambda: ReplicaReport("w1", 1, ("tiny",))
        )
        registration.start()
        painted = await first
        await registration.close()
        await server.stop()
    await controller.drain()
    await controller.server.stop()
    await controller.close()

    assert isinstance(painted, Completed)
    assert [spec.prompt for spec in worker.executed] == ["a red circle"]


@pytest.mark.slow
async def test_request_for_a_model_that_nobody_scales_is_refused(folder: Path) -> None:
    controller = await start_controller(folder)
    settings = {"worker_addresses": (), "worker_wait_s": 0.0, "controller_address": f"unix:{folder / 'c'}"}
    async with running_suite(folder, default_model="tiny", **settings) as suite, asyncio.timeout(120):
        await until(lambda: suite.frontdoor.parts.dataplane.state.plan is not None)
        with pytest.raises(Unavailable, match="no worker is ready yet"):
            await suite.paint(REQUEST)
    await controller.drain()
    await controller.server.stop()
    await controller.close()
