"""Test rules of callers over mutual TLS: names in certificates against methods, on gRPC's own and relayed
connections."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from lab.fixtures.certificates import Authority
from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker_pb
from pentimento.domain import errors
from pentimento.rpc import RpcChannelSettings, RpcServer, RpcServerSettings, error_from_rpc
from pentimento.rpc.callers import REJECTED
from pentimento.rpc.settings import TlsSettings, client_settings
from pentimento.settings import SettingsError
from tests.contract.rpc.scripted import EMBED_TEXT, Scripted, channel_to, embed, embedder_stub, serving, worker_stub
from tests.support.logged import said_by

FRONTDOOR = "spiffe://cluster.local/ns/images/sa/pentimento-frontdoor"
RULES = f"""
[names]
frontdoor = ["{FRONTDOOR}"]
unet-worker = ["*.workers.images.svc"]
administrator = ["operator.images.svc"]
"""


class Suite:
    """Hold an authority, and the settings of a server and of callers with names."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder, "authority")
        self.rules = folder / "callers.toml"
        self.rules.write_text(RULES)
        pair = self._authority.issue("server")
        self.server = RpcServerSettings(
            listen=("127.0.0.1:0",),
            tls=TlsSettings(pair.directory, mutual_tls=True),
            tls_callers_file=self.rules,
        )

    def caller(self, *names: x509.GeneralName) -> RpcChannelSettings:
        return client_settings(self._authority.issue("caller", *names).directory)


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


@pytest.fixture(params=[False, True], ids=["direct", "relayed"])
async def target(request: pytest.FixtureRequest, suite: Suite) -> AsyncIterator[Scripted]:
    async with serving(suite.server, takes_turns=request.param) as made:
        yield made


async def answered(channel: grpc.aio.Channel) -> str | errors.PentimentoError:
    try:
        return await embed(channel, "hello")
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error)


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        ((x509.UniformResourceIdentifier(FRONTDOOR),), True),
        ((x509.DNSName("other.svc"), x509.UniformResourceIdentifier(FRONTDOOR)), True),
        ((x509.DNSName("worker-0.workers.images.svc"),), False),
        ((x509.UniformResourceIdentifier(f"{FRONTDOOR}-2"),), False),
        # Names of other kinds grant nothing, even with the right text.
        ((x509.RFC822Name(FRONTDOOR), x509.RegisteredID(x509.ObjectIdentifier("1.2.3"))), False),
        ((), False),
    ],
)
async def test_certificate_s_names_decide_which_methods_it_may_call(
    names: tuple[x509.GeneralName, ...], allowed: bool, suite: Suite, target: Scripted
) -> None:
    async with channel_to(target, suite.caller(*names)) as channel:
        found = await answered(channel)

    assert (found == "hello") is allowed
    if not allowed:
        assert type(found) is errors.PermissionDenied
        assert found.reason == "CALLER_NOT_ALLOWED"
        assert found.message.startswith(f"{EMBED_TEXT} is not for ")
        assert found.metadata["method"] == EMBED_TEXT


@pytest.mark.slow  # The relay closes a stream over TLS late.
async def test_worker_calls_workers_and_no_embedder(suite: Suite, target: Scripted) -> None:
    worker = suite.caller(x509.DNSName("worker-0.workers.images.svc"))
    async with channel_to(target, worker) as channel:
        rejected = await answered(channel)
        half = worker_stub(channel).PredictHalf(iter(()))
        with pytest.raises(grpc.aio.AioRpcError) as unfit:
            await half.read()
        watch = worker_stub(channel).WatchCredits(worker_pb.WatchCreditsRequest())
        with pytest.raises(grpc.aio.AioRpcError) as forbidden:
            await watch.read()
        half.cancel()
        watch.cancel()

    assert isinstance(rejected, errors.PermissionDenied)
    assert rejected.metadata["names"] == "worker-0.workers.images.svc"
    # The call to a permitted method reaches its handler.
    assert type(error_from_rpc(unfit.value)) is not errors.PermissionDenied
    assert error_from_rpc(forbidden.value).reason == "CALLER_NOT_ALLOWED"


async def test_administrator_makes_the_calls_of_its_role(suite: Suite, target: Scripted) -> None:
    async with channel_to(target, suite.caller(x509.DNSName("operator.images.svc"))) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as unserved:
            await embedder_stub(channel).GetInfo(embedder.GetInfoRequest())
        rejected = await answered(channel)

    assert unserved.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert isinstance(rejected, errors.PermissionDenied)


async def test_health_and_reflection_need_no_name(suite: Suite, target: Scripted) -> None:
    async with channel_to(target, suite.caller()) as channel:
        health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asked]))
        listed = await reflection.read()

    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert len(listed.list_services_response.service) > 2


async def test_unix_socket_needs_no_certificate(suite: Suite, socket_path: Path) -> None:
    settings = replace(suite.server, listen=(f"unix:{socket_path}", "127.0.0.1:0"))

    async with serving(settings) as target, channel_to(target) as channel:
        assert await answered(channel) == "hello"


async def test_rejected_call_is_counted_and_audited(
    suite: Suite, target: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pentimento.audit")
    before = REJECTED._value.get()

    async with channel_to(target, suite.caller(x509.DNSName("other.svc"))) as channel:
        await answered(channel)
    async with channel_to(target, suite.caller(x509.UniformResourceIdentifier(FRONTDOOR))) as channel:
        await answered(channel)

    (record,) = said_by("pentimento.audit", caplog)
    fields = {name: getattr(record, name) for name in ("method", "tenant", "peer", "subject", "code")}
    assert fields == {
        "method": EMBED_TEXT,
        "tenant": "",
        "peer": "ipv4:127.0.0.1",
        "subject": "names=other.svc",
        "code": "PERMISSION_DENIED",
    }
    assert REJECTED._value.get() == before + 1


@pytest.mark.slow
async def test_changed_rules_hold_for_the_next_call(
    suite: Suite, target: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    async with channel_to(target, suite.caller(x509.DNSName("other.svc"))) as channel:
        before = await answered(channel)
        suite.rules.write_text('[names]\nfrontdoor = ["other.svc"]\n')
        while not isinstance(await answered(channel), str):
            pass
        suite.rules.write_text("[names")
        while not said_by("pentimento.rpc.watched_file", caplog):
            after = await answered(channel)

    # A malformed file changes nothing.
    assert isinstance(before, errors.PermissionDenied) and after == "hello"


@pytest.mark.parametrize("relayed", [False, True], ids=["direct", "relayed"])
def test_malformed_rules_end_the_start(suite: Suite, relayed: bool) -> None:
    suite.rules.write_text('[names]\nworker = ["a"]\n')

    with pytest.raises(SettingsError, match=r"callers\.toml: names\.worker: must be one of "):
        RpcServer(suite.server, "program", takes_turns=relayed)
