"""Test requests in pools without workers after a later plan, in a running frontdoor."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from lab.fixtures.cascade import CascadeParts
from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker, serve
from pentimento.api.keda import externalscaler_pb2 as pb
from pentimento.api.keda.externalscaler_pb2_grpc import ExternalScalerStub
from pentimento.clients.controller import ControllerClient, Registration
from pentimento.dataplane.events import PlanReceived
from pentimento.domain.errors import Unavailable
from pentimento.domain.fleet import Plan, PoolPlan, Replica, ReplicaKind, ReplicaReport, WorkerAssignment
from pentimento.domain.generation import FromNoise, PlanVersion
from pentimento.domain.image_request import Completed, ImageRequest
from pentimento.policies.plan.entry import EVERY_START
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from services.controller.settings import ControllerSettings
from services.controller.wiring import ControllerProcess, wire
from tests.integration.frontdoor.test_plan import UNNAMED, planned_parts


def entering(pool: str, sequence: int, **workers: tuple[str, ...]) -> Plan:
    """Return a plan that sends requests to that pool."""
    routes = {pool: EVERY_START}
    pools = tuple(PoolPlan(name, name, workers[name], routes.get(name, ())) for name in workers)
    return Plan(PlanVersion(1, sequence), (WorkerAssignment("w1", "unix:/w1", "", 1),), pools)


async def waiting_for_heavy(suite: FrontdoorSuite, parts: CascadeParts) -> str:
    """Return the id of a job that a plan sent to the heavy model; its only worker now holds another model."""
    parts.heavy.held = replace(parts.heavy.held, model="other", model_digest="sha256:other")
    parts.heavy.change()
    await until(lambda: not suite.frontdoor.interpreter.dataplane.state.pools["heavy"].workers)
    return (await suite.client.submit(UNNAMED)).request_id


@pytest.mark.parametrize("restarts", [False, True])
async def test_request_of_model_without_workers_follows_current_plan(folder: Path, restarts: bool) -> None:
    pools = (PoolPlan("light", "light", ("w1",)), PoolPlan("heavy", "heavy", ("w2",), EVERY_START))
    async with planned_parts(folder, pools, FromNoise()) as (parts, settings), AsyncExitStack() as later:
        async with AsyncExitStack() as running:
            suite = await running.enter_async_context(running_suite(folder, **settings))
            await suite.wait_for_workers(2)
            request_id = await waiting_for_heavy(suite, parts)
            if not restarts:
                later.push_async_exit(running.pop_all())
        if restarts:
            suite = await later.enter_async_context(running_suite(folder, **settings))
        suite.frontdoor.interpreter.submit(PlanReceived(entering("light", 2, light=("w1",), heavy=())))
        (ended,) = [event async for event in suite.client.attach(request_id) if isinstance(event, Completed)]

    provenance = ended.provenance
    assert (provenance.spec.model, provenance.spec.num_inference_steps) == ("light", 2)
    assert [(stage.pool, stage.discriminator) for stage in provenance.route.stages] == [("heavy", ""), ("light", "")]
    assert not any("degraded" in note for note in provenance.notes)


WAITING = ImageRequest(prompt="a red circle", seed=1, deadline_ms=120_000)


async def start_controller(folder: Path, *scaled: str) -> ControllerProcess:
    """With a lease of one second, the policy begins two seconds after the start."""
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
async def test_request_waits_for_worker_that_autoscaler_starts(folder: Path) -> None:
    controller = await start_controller(folder, "tiny")
    worker = PacedWorker("w1")  # type: ignore[abstract]
    replica = Replica("w1", ReplicaKind.UNET_WORKER, f"unix:{folder / 'w1'}", 1, resident_models=("tiny",))
    settings = {"worker_addresses": (), "worker_wait_s": 0.0, "controller_address": f"unix:{folder / 'c'}"}
    async with (
        open_channel(f"unix:{folder / 'c'}", RpcChannelSettings()) as channel,
        grpc.aio.insecure_channel(f"unix:{folder / 's'}") as scaler,
        running_suite(folder, cascade=("tiny",), **settings) as suite,
        asyncio.timeout(120),
    ):
        await until(lambda: "tiny" in suite.frontdoor.interpreter.dataplane.state.index.unstaffed)
        first = asyncio.create_task(suite.paint(WAITING))
        await until_active(ExternalScalerStub(scaler))
        assert not first.done()
        server = await serve(worker, f"unix:{folder / 'w1'}")
        registration = Registration(
            ControllerClient(channel), lambda: replica, lambda: ReplicaReport("w1", 1, ("tiny",))
        )
        registration.start()
        generated = await first
        await registration.close()
        await server.stop()
    await controller.drain()
    await controller.server.stop()
    await controller.close()

    assert isinstance(generated, Completed)
    assert [spec.prompt for spec in worker.executed] == ["a red circle"]


@pytest.mark.slow
async def test_request_for_model_without_autoscaler_is_refused(folder: Path) -> None:
    controller = await start_controller(folder)
    settings = {"worker_addresses": (), "worker_wait_s": 0.0, "controller_address": f"unix:{folder / 'c'}"}
    async with running_suite(folder, cascade=("tiny",), **settings) as suite, asyncio.timeout(120):
        await until(lambda: suite.frontdoor.interpreter.dataplane.state.plan is not None)
        with pytest.raises(Unavailable, match="no worker is ready yet"):
            await suite.paint(REQUEST)
    await controller.drain()
    await controller.server.stop()
    await controller.close()
