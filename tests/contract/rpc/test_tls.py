"""Test TLS and mutual TLS by configuration: which certificates each side accepts."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives import serialization

from lab.fixtures.certificates import Authority, Pair
from lab.fixtures.raw_http2 import open_streams
from pentimento.domain import errors
from pentimento.rpc import RpcChannelSettings, RpcServer, RpcServerSettings, credentials, error_from_rpc, open_channel
from pentimento.rpc.credentials import Pems, channel_credentials, load
from pentimento.rpc.settings import PemFiles, TlsSettings
from pentimento.settings import SettingsError
from tests.contract.rpc.scripted import channel_to, embed, serving


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "stranger")


def tls_server(authority: Authority, *, mutual: bool = False) -> RpcServerSettings:
    return RpcServerSettings(listen=("127.0.0.1:0",), tls=TlsSettings(authority.issue("server").directory, mutual))


def tls_client(authority: Authority, pair: Pair | None = None) -> RpcChannelSettings:
    directory = pair.trusting(authority).directory if pair is not None else authority.directory
    return RpcChannelSettings(tls=TlsSettings(directory))


@dataclass
class Asked:
    """Call a server, directly or through the relay, and return its answer or error."""

    relayed: bool

    async def __call__(self, server: RpcServerSettings, client: RpcChannelSettings) -> str | errors.PentimentoError:
        async with serving(server, takes_turns=self.relayed) as target, channel_to(target, client) as channel:
            try:
                return await embed(channel, "hello")
            except grpc.aio.AioRpcError as error:
                return error_from_rpc(error)


@pytest.fixture(params=[False, True], ids=["direct", "relayed"])
def answer_or_error(request: pytest.FixtureRequest) -> Asked:
    return Asked(request.param)


async def test_tls_server_and_client_need_each_others_authority(
    answer_or_error: Asked, authority: Authority, stranger: Authority
) -> None:
    plain, mutual = tls_server(authority), tls_server(authority, mutual=True)
    known, other = authority.issue("client"), stranger.issue("other-client")

    for server, client, answered in (
        (plain, tls_client(authority), True),
        (plain, tls_client(authority, known), True),
        (plain, RpcChannelSettings(), False),
        (mutual, tls_client(authority, known), True),
        (mutual, tls_client(authority), False),
        (mutual, tls_client(authority, other), False),
    ):
        found = await answer_or_error(server, client)
        assert found == "hello" if answered else type(found) is errors.Unavailable, (server, client)
    # The issued certificate replaces the previous one of that name.
    assert type(await answer_or_error(tls_server(stranger), tls_client(authority))) is errors.Unavailable


async def test_a_relayed_connection_that_agrees_on_another_protocol_is_closed(authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.certificate)
    context.set_alpn_protocols(["http/1.1"])

    async with serving(tls_server(authority), takes_turns=True) as target:
        reader, writer = await open_streams(target.address, context)
        heard = await reader.read()
        writer.close()

    assert heard == b""


def another_key(authority: Authority, server: RpcServerSettings) -> RpcServerSettings:
    assert server.tls.files.key is not None
    authority.issue("other").key.replace(server.tls.files.key)
    return server


def a_broken_authority(authority: Authority, server: RpcServerSettings) -> RpcServerSettings:
    assert server.tls.files.authorities is not None
    server.tls.files.authorities.write_text("-----BEGIN CERTIFICATE-----\n")
    return server


def a_locked_key(authority: Authority, server: RpcServerSettings) -> RpcServerSettings:
    assert server.tls.files.key is not None
    key = serialization.load_pem_private_key(server.tls.files.key.read_bytes(), None)
    lock = serialization.BestAvailableEncryption(b"phrase")
    form = serialization.PrivateFormat.PKCS8
    server.tls.files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, lock))
    return server


@pytest.mark.parametrize("relayed", [False, True], ids=["direct", "relayed"])
@pytest.mark.parametrize("spoil", [another_key, a_broken_authority, a_locked_key])
def test_certificates_that_cannot_serve_are_refused_by_name(
    spoil: Callable[[Authority, RpcServerSettings], RpcServerSettings], relayed: bool, authority: Authority
) -> None:
    settings = spoil(authority, tls_server(authority, mutual=True))

    with pytest.raises(SettingsError, match=r"server/tls\.crt, "):
        RpcServer(settings, "program", takes_turns=relayed)


def without_authorities(authority: Authority, client: RpcChannelSettings) -> RpcChannelSettings:
    assert client.tls.files.authorities is not None
    client.tls.files.authorities.write_text("-----BEGIN CERTIFICATE-----\n")
    return client


def with_another_key(authority: Authority, client: RpcChannelSettings) -> RpcChannelSettings:
    assert client.tls.files.key is not None
    authority.issue("other").key.replace(client.tls.files.key)
    return client


@pytest.mark.parametrize("spoil", [without_authorities, with_another_key])
async def test_certificates_that_no_server_can_be_called_with_are_refused_by_name(
    spoil: Callable[[Authority, RpcChannelSettings], RpcChannelSettings], authority: Authority
) -> None:
    settings = spoil(authority, tls_client(authority, authority.issue("client")))

    with pytest.raises(SettingsError, match=r"client/ca\.crt: "):
        open_channel("127.0.0.1:1", settings)


def test_files_of_a_channel_are_checked_once_until_they_change(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Event loops open channels: reading the system's authorities cost the edge 50 ms for each connection of a
    caller."""
    checked: list[PemFiles] = []

    def counted(context: ssl.SSLContext, files: PemFiles) -> Pems:
        checked.append(files)
        return load(context, files)

    monkeypatch.setattr(credentials, "load", counted)
    settings = tls_client(authority, authority.issue("client")).tls
    first = [channel_credentials(settings) for _ in range(3)]
    renewed = authority.issue("client")
    second = [channel_credentials(settings) for _ in range(3)]

    assert renewed.certificate == settings.files.certificate
    assert len(checked) == 2
    assert (len(set(first)), len(set(second)), first[0] is second[0]) == (1, 1, False)


def test_a_channel_that_is_opened_after_its_files_were_spoilt_is_refused(authority: Authority) -> None:
    settings = tls_client(authority)
    channel_credentials(settings.tls)
    for spoil, words in (
        (lambda: authority.certificate.write_text(""), "holds no PEM block"),
        (authority.certificate.unlink, "cannot be read: No such file"),
    ):
        spoil()
        # Never without TLS.
        with pytest.raises(SettingsError, match=rf"authority/ca\.crt: {words}"):
            open_channel("127.0.0.1:1", settings)
