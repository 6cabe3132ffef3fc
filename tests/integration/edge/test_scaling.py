"""Test the number of edges that an autoscaler reads: by the edges' own calls, as frontdoors report them."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import httpx

from lab.fixtures.edge_suite import running_edge
from lab.fixtures.frontdoor_suite import running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.api.keda import externalscaler_pb2 as pb
from pentimento.api.keda.externalscaler_pb2_grpc import ExternalScalerStub
from pentimento.rpc import RpcServerSettings
from services.controller.settings import ControllerSettings
from services.controller.wiring import wire


async def test_edges_are_counted_by_http_calls_and_not_by_those_of_grpc_clients(
    folder: Path, worker: PacedWorker
) -> None:
    worker.hold.clear()
    address, scaler = f"unix:{folder / 'c'}", f"unix:{folder / 's'}"
    controller = wire(ControllerSettings(RpcServerSettings(listen=(address,)), lease_s=1.0, scaler_listen=(scaler,)))
    await controller.server.start()
    await controller.warm()
    async with AsyncExitStack() as stack:
        suite = await stack.enter_async_context(running_suite(folder, controller_address=address))
        edge = await stack.enter_async_context(running_edge(folder, f"unix:{folder / 'f'}"))
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://{edge.listener.address}", timeout=60)
        )
        keda = ExternalScalerStub(await stack.enter_async_context(grpc.aio.insecure_channel(scaler)))

        async def wanted(service: str) -> float:
            ref = pb.ScaledObjectRef(scalerMetadata={"service": service, "dwellSeconds": "0", "callsPerReplica": "1"})
            answer = await keda.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=ref), wait_for_ready=True)
            return answer.metricValues[0].metricValueFloat

        async def when(service: str, count: float) -> None:
            async with asyncio.timeout(60):
                while True:
                    try:
                        if await wanted(service) == count:
                            return
                    except grpc.aio.AioRpcError as error:
                        assert error.code() is grpc.StatusCode.UNAVAILABLE
                    await asyncio.sleep(0.02)

        by_grpc = asyncio.ensure_future(suite.paint())
        await when("frontdoor", 1.0)
        assert await wanted("edge") == 0.0

        by_http = asyncio.ensure_future(http.post("/v1/images/generations", json={"prompt": "a red circle"}))
        await when("edge", 1.0)
        worker.hold.set()
        assert (await by_http).status_code == 200
        await by_grpc
    await controller.drain()
    await controller.server.stop()
    await controller.close()
