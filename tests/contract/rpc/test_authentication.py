"""Test tokens: accepted callers, their roles, and when a changed file takes effect."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from pentimento.domain import errors
from pentimento.domain.tenants import DEFAULT_TENANT, Role
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, current_caller, error_from_rpc, new_token, token_entry
from tests.contract.rpc.scripted import Scripted, channel_to, embed, serving

TOKEN = new_token()


async def tell_caller(request: object) -> str:
    caller = current_caller()
    return f"{caller.tenant}:{','.join(sorted(role.value for role in caller.roles))}"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "tokens.toml"
    file.write_text(token_entry(TOKEN, "acme", frozenset({Role.SERVICE})))
    return file


@pytest.fixture
async def guarded(socket_path: Path, token_file: Path) -> AsyncIterator[Scripted]:
    async with serving(RpcServerSettings(listen=(f"unix:{socket_path}",), token_file=token_file)) as made:
        made.embedder.embed = tell_caller
        yield made


async def refusal(target: Scripted, token: str | None, **options: object) -> errors.PentimentoError:
    async with channel_to(target, token=token) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await embed(channel, **options)
    return error_from_rpc(caught.value)


async def test_without_a_token_file_everybody_is_the_default_tenant(
    target: Scripted, channel: grpc.aio.Channel
) -> None:
    target.embedder.embed = tell_caller

    assert await embed(channel) == f"{DEFAULT_TENANT}:admin,anyone,service,tenant-admin,user"


async def test_token_names_tenant_and_roles(guarded: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")

    for settings, token in ((RpcChannelSettings(), TOKEN), (RpcChannelSettings(service_token_file=file), None)):
        async with channel_to(guarded, settings, token=token) as channel:
            assert await embed(channel) == "acme:service"


async def test_missing_wrong_or_second_token_is_unauthenticated(guarded: Scripted) -> None:
    """A proxy may have validated one of two tokens, and the server would use the other."""
    for token in (None, "wrong", TOKEN[:-1], TOKEN + "x"):
        assert type(await refusal(guarded, token)) is errors.Unauthenticated
    for shown in ((f"Basic {TOKEN}",), (f"Bearer {TOKEN}", "Bearer another"), ("Bearer another", f"Bearer {TOKEN}")):
        refused = await refusal(guarded, None, metadata=tuple(("authorization", one) for one in shown))
        assert refused.reason == "MALFORMED_TOKEN"
    async with channel_to(guarded) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:  # before the message is parsed
            await channel.unary_unary("/pentimento.api.embedder.v1.EmbedderService/EmbedText")(b"\xff\xff no message")
        health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())

    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert health.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_malformed_replacement_changes_nothing(
    guarded: Scripted, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token_file.write_text("[[token]]\nsha256 = 'short'\n")
    guarded.server.reload_tokens()

    async with channel_to(guarded, token=TOKEN) as channel:
        assert await embed(channel) == "acme:service"
    assert "token file not reloaded, the previous tokens stay valid" in caplog.messages


REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


@pytest.mark.parametrize("service", REFLECTIONS)
async def test_reflection_describes_services_to_callers_with_token(guarded: Scripted, service: str) -> None:
    """Calls reflection as grpcurl's `describe` does."""
    listing = reflection_pb2.ServerReflectionRequest(list_services="")
    async with channel_to(guarded) as stranger, channel_to(guarded, token=TOKEN) as known:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reflected(stranger, service, listing)
        (listed,) = await reflected(known, service, listing)
        names = [one.name for one in listed.list_services_response.service]
        asked = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in names]
        answers = await reflected(known, service, *asked)

    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert len(names) == len(set(names))
    assert {"pentimento.api.embedder.v1.EmbedderService", "grpc.health.v1.Health", *REFLECTIONS} <= set(names)
    described = {
        f"{file.package}.{one.name}"
        for answer in answers
        for data in answer.file_descriptor_response.file_descriptor_proto
        for file in [FileDescriptorProto.FromString(data)]
        for one in file.service
    }
    assert set(names) <= described


async def reflected(
    channel: grpc.aio.Channel, service: str, *requests: reflection_pb2.ServerReflectionRequest
) -> list[reflection_pb2.ServerReflectionResponse]:
    call = channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return [answer async for answer in call(iter(requests), timeout=120)]
