"""KEDA's calls over the scaler's own listener: specification, metrics, pushes, certificates, wrong metadata."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from lab.fixtures.certificates import Authority
from pentimento.api.keda import externalscaler_pb2 as pb
from pentimento.api.keda.externalscaler_pb2_grpc import ExternalScalerStub
from pentimento.clients.controller import ControllerClient
from pentimento.domain.demand import PoolDemand
from pentimento.domain.fleet import ModelCost, Replica, ReplicaKind, ReplicaReport
from pentimento.domain.tenants import Role
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, new_token, open_channel, token_entry
from pentimento.rpc.settings import TlsSettings
from services.controller.settings import ControllerSettings, PolicySettings
from services.controller.wiring import ControllerProcess, wire
from tests.support.values import a_worker

WORKER = a_worker("w1", "heavy", costs=(ModelCost("heavy", ((1, 2.0),)),))
DOOR = Replica("f1", ReplicaKind.FRONTDOOR, "unix:/f1", 1)
HEAVY = {"scalerAddress": "controller:9090", "service": "unet_worker", "models": "heavy"}
HEAVY |= {"dwellSeconds": "0", "startSeconds": "0"}


@asynccontextmanager
async def running(settings: ControllerSettings) -> AsyncIterator[ControllerProcess]:
    process = wire(settings)
    await process.server.start()
    await process.warm()
    try:
        yield process
    finally:
        await process.drain()
        await process.server.stop()
        await process.close()


def settings_of(address: str, scaler: str, **rpc: Path) -> ControllerSettings:
    """With a lease of one second, the policy begins two seconds after the start."""
    return ControllerSettings(
        RpcServerSettings(listen=(address,), **rpc),
        PolicySettings(slo_s=8.0),
        lease_s=1.0,
        plan_interval_s=0.2,
        scaler_listen=(scaler,),
        scaled_models=("heavy",),
    )


def ref(**changes: str) -> pb.ScaledObjectRef:
    return pb.ScaledObjectRef(name="heavy", namespace="images", scalerMetadata={**HEAVY, **changes})


def violated(error: grpc.aio.AioRpcError) -> list[str]:
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    found = error_details_pb2.BadRequest()
    assert any(detail.Unpack(found) for detail in status_pb2.Status.FromString(details).details)
    return [violation.field for violation in found.field_violations]


async def when(ask: Callable[[], object], expected: object) -> None:
    """Return once the answer is the expected one."""
    async with asyncio.timeout(60):
        while True:
            try:
                if await ask() == expected:
                    return
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
            await asyncio.sleep(0.02)


async def test_scaler_follows_reports_and_pushes_when_a_request_waits(address: str) -> None:
    scaler = f"{address}-scaler"
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(settings_of(address, scaler)))
        client = ControllerClient(await stack.enter_async_context(open_channel(address, RpcChannelSettings())))
        keda = ExternalScalerStub(await stack.enter_async_context(grpc.aio.insecure_channel(scaler)))
        specs = keda.StreamMetricSpec(ref())
        expected = [pb.MetricSpec(metricName="wanted_replicas", targetSize=1, targetSizeFloat=1.0)]
        assert [*(await specs.read()).metricSpecs] == expected
        assert [*(await keda.GetMetricSpec(ref())).metricSpecs] == expected

        async def active() -> bool:
            return (await keda.IsActive(ref())).result

        await when(active, False)
        pushes = keda.StreamIsActive(ref())
        assert (await pushes.read()).result is False
        await client.register(DOOR)
        await client.report(ReplicaReport("f1", 1, demand=(PoolDemand("heavy", queue_length=1),)))
        async with asyncio.timeout(60):
            assert (await pushes.read()).result is True

        await client.register(WORKER)
        await client.report(ReplicaReport("f1", 1, demand=(PoolDemand("heavy", queue_length=30),)))

        async def wanted() -> float:
            answer = await keda.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=ref(), metricName="wanted_replicas"))
            (value,) = answer.metricValues
            assert value.metricValue == value.metricValueFloat
            return value.metricValueFloat

        # Thirty images of two seconds within the six that they may wait.
        await when(wanted, 10.0)
        specs.cancel()
        pushes.cancel()


@pytest.mark.parametrize(
    ("metadata", "metric", "field"),
    [
        ({"service": "painter"}, "", "scalerMetadata.service"),
        ({"models": "heavy,other"}, "", "scalerMetadata.models"),
        ({"dwellSeconds": "soon"}, "", "scalerMetadata.dwellSeconds"),
        ({}, "queue", "metricName"),
    ],
)
async def test_wrong_requests_name_their_field(address: str, metadata: dict[str, str], metric: str, field: str) -> None:
    scaler = f"{address}-scaler"
    async with running(settings_of(address, scaler)), grpc.aio.insecure_channel(scaler) as channel:
        keda = ExternalScalerStub(channel)

        async def code() -> grpc.StatusCode:
            try:
                await keda.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=ref(**metadata), metricName=metric))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    raise
                assert violated(error) == [field]
                return error.code()
            return grpc.StatusCode.OK

        await when(code, grpc.StatusCode.INVALID_ARGUMENT)


async def test_scaler_needs_a_certificate_where_one_is_required_and_never_a_token(address: str, tmp_path: Path) -> None:
    authority, strangers = Authority(tmp_path, "authority"), Authority(tmp_path, "strangers")
    shown, known, unknown = authority.issue("server"), authority.issue("keda"), strangers.issue("stranger")
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(token_entry(new_token(), "acme", frozenset({Role.SERVICE})))
    settings = ControllerSettings(
        RpcServerSettings(listen=(address,), token_file=tokens, tls=TlsSettings(shown.directory, mutual_tls=True)),
        scaler_listen=("127.0.0.1:0",),
    )
    async with running(settings) as process:
        assert process.scaler_server is not None
        (bound,) = process.scaler_server.bound_addresses
        answers = []
        for pair in (known, unknown):
            credentials = grpc.ssl_channel_credentials(
                authority.certificate.read_bytes(), pair.key.read_bytes(), pair.certificate.read_bytes()
            )
            async with grpc.aio.secure_channel(bound, credentials) as channel:
                try:
                    await ExternalScalerStub(channel).GetMetricSpec(ref(), timeout=30)
                    answers.append("OK")
                except grpc.aio.AioRpcError as error:
                    answers.append(error.code().name)

    assert answers == ["OK", "UNAVAILABLE"]
