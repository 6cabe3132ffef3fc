"""Test certificates that are renewed while a server serves."""

import asyncio
import errno
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest

from lab.fixtures.certificates import Authority, Pair
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel, watched_file
from pentimento.rpc.channel import channel_opener
from pentimento.rpc.credentials import ClientCredentials, ShownCertificate, load
from pentimento.rpc.settings import PemFiles, TlsSettings, client_settings
from pentimento.settings import SettingsError
from tests.contract.rpc.scripted import Scripted, embed, serving, worker_stub

NOT_RELOADED = "certificate not reloaded, the previous one is used"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_file, "CHECK_INTERVAL_S", 0.0)


@dataclass(frozen=True)
class Serving:
    """Hold a server with the files that it reads: those of `shown`, which for mutual TLS verify its clients."""

    target: Scripted
    shown: Pair

    async def certificate(self) -> str:
        """Return the certificate that a new connection receives, in PEM."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        host, _, port = self.target.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        # Abort: a connection that still closes when the loop ends would log a complaint in a later test.
        writer.transport.abort()
        await writer.wait_closed()
        return ssl.DER_cert_to_PEM_cert(shown)


@pytest.fixture
def mutual() -> bool:
    return False


@pytest.fixture(params=[False, True], ids=["direct", "relayed"])
async def served(request: pytest.FixtureRequest, authority: Authority, mutual: bool) -> AsyncIterator[Serving]:
    shown = authority.issue("shown")
    settings = RpcServerSettings(listen=("127.0.0.1:0",), tls=TlsSettings(shown.directory, mutual))
    async with serving(settings, takes_turns=request.param) as target:
        yield Serving(target, shown)


def put(fresh: Pair, at: Pair) -> None:
    """Replace both files, each at once."""
    fresh.key.replace(at.key)
    fresh.certificate.replace(at.certificate)


def channel_of(served: Serving, settings: RpcChannelSettings) -> grpc.aio.Channel:
    return open_channel(served.target.address, settings, own_connection=True)


async def test_new_connections_get_renewed_certificate_and_open_ones_continue(
    served: Serving, authority: Authority
) -> None:
    trusting = client_settings(authority.directory)
    async with channel_of(served, trusting) as before:
        assert await embed(before, "before") == "before"
        renewed = authority.issue("renewed")
        pem = renewed.certificate.read_text()
        put(renewed, served.shown)
        assert await served.certificate() == pem
        async with channel_of(served, trusting) as after:
            assert await embed(after, "after") == "after"
        assert await embed(before, "still") == "still"


def another_certificate(fresh: Pair, shown: Pair) -> None:
    shown.certificate.write_bytes(fresh.certificate.read_bytes())


def half_a_key(fresh: Pair, shown: Pair) -> None:
    shown.key.write_text(fresh.key.read_text()[:100])


def nothing(fresh: Pair, shown: Pair) -> None:
    shown.certificate.write_text("")


def no_file(fresh: Pair, shown: Pair) -> None:
    shown.key.unlink()


@pytest.mark.parametrize("spoil", [another_certificate, half_a_key, nothing, no_file])
async def test_the_certificate_of_before_is_shown_while_the_files_do_not_fit_together(
    served: Serving, authority: Authority, spoil: Callable[[Pair, Pair], None], caplog: pytest.LogCaptureFixture
) -> None:
    before, renewed = await served.certificate(), authority.issue("renewed")
    pem = renewed.certificate.read_text()
    spoil(renewed, served.shown)
    meanwhile = [await served.certificate() for _ in range(3)]
    told = caplog.messages.count(NOT_RELOADED)
    put(renewed, served.shown)

    assert meanwhile == [before] * 3
    assert told == 1
    assert await served.certificate() == pem


def test_key_changed_during_its_check_is_rejected(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC takes bytes, but the check reads files."""
    shown, renewed = authority.issue("shown"), authority.issue("renewed")

    class Slow(ssl.SSLContext):
        def load_cert_chain(self, *files: object, **options: object) -> None:
            super().load_cert_chain(*files, **options)  # type: ignore[arg-type]
            shown.key.write_bytes(renewed.key.read_bytes())

    with pytest.raises(SettingsError, match="being written"):
        load(Slow(ssl.PROTOCOL_TLS_SERVER), PemFiles(shown.certificate, shown.key, None))


@pytest.mark.parametrize("mutual", [True])
async def test_authorities_of_clients_are_taken_back(served: Serving, authority: Authority, tmp_path: Path) -> None:
    others = Authority(tmp_path, "others")
    ours = client_settings(authority.issue("ours").directory)
    theirs = client_settings(others.issue("theirs").trusting(authority).directory)
    async with channel_of(served, ours) as known:
        await embed(known, "a")
    served.shown.trusting(others)

    async with channel_of(served, theirs) as known, channel_of(served, ours) as stranger:
        assert await embed(known, "b") == "b"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await embed(stranger, "c")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("relayed", [False, True], ids=["direct", "relayed"])
async def test_certificate_follows_the_link_of_its_volume(tmp_path: Path, authority: Authority, relayed: bool) -> None:
    """Replace a secret as Kubernetes does: one symbolic link in the path of all its files changes."""
    pems = []
    for version in ("first", "second"):
        pair, folder = authority.issue(version), tmp_path / f"..{version}"
        pems.append(pair.certificate.read_text())
        folder.mkdir()
        pair.certificate.rename(folder / "tls.crt")
        pair.key.rename(folder / "tls.key")
    (tmp_path / "..data").symlink_to("..first")
    shown = Pair(tmp_path)
    for path in (shown.certificate, shown.key):
        path.symlink_to(f"..data/{path.name}")
    settings = RpcServerSettings(listen=("127.0.0.1:0",), tls=TlsSettings(tmp_path))

    async with serving(settings, takes_turns=relayed) as target:
        found = Serving(target, shown)
        first = await found.certificate()
        (tmp_path / "..new").symlink_to("..second")
        (tmp_path / "..new").replace(tmp_path / "..data")
        second = await found.certificate()

    assert [first, second] == pems


def client_of(authority: Authority, signed_by: Authority) -> tuple[RpcChannelSettings, Callable[[], None]]:
    """Return a client's settings, and a function that replaces its certificate by one that `signed_by` signed."""
    shown, fresh = authority.issue("client"), signed_by.issue("fresh-client")
    return client_settings(shown.directory), lambda: put(fresh, shown)


async def test_a_channel_shows_a_renewed_certificate_to_a_server_that_wants_it(
    authority: Authority, tmp_path: Path
) -> None:
    others, shown = Authority(tmp_path, "others"), authority.issue("shown")
    settings, renew = client_of(authority, others)
    wanting = RpcServerSettings(listen=("127.0.0.1:0",), tls=TlsSettings(shown.directory, True))
    async with serving(wanting) as first, open_channel(first.address, settings) as channel:
        before, address = await embed(channel, "before"), first.address
        await first.server.stop()
        shown.trusting(others)
        async with serving(replace(wanting, listen=(address,))):
            renew()
            after = await embed(channel, "after", wait_for_ready=True, timeout=60)

    assert (before, after) == ("before", "after")


async def test_running_calls_continue_during_renewal(served: Serving, authority: Authority) -> None:
    renewed = asyncio.Event()

    async def credit(request: object) -> AsyncIterator[worker.WatchCreditsResponse]:
        yield worker.WatchCreditsResponse()
        await renewed.wait()
        yield worker.WatchCreditsResponse()

    served.target.worker.credits = credit
    settings, renew = client_of(authority, authority)
    async with channel_of(served, settings) as channel:
        running = worker_stub(channel).WatchCredits(worker.WatchCreditsRequest())
        await running.read()
        renew()
        await embed(channel, "over another connection")
        renewed.set()
        second, end = await running.read(), await running.read()

    assert (second, end) == (worker.WatchCreditsResponse(), grpc.aio.EOF)


@pytest.mark.parametrize("mutual", [True])
async def test_channel_continues_while_its_files_do_not_match(
    served: Serving, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    settings, renew = client_of(authority, authority)
    assert settings.tls.files.key is not None
    async with channel_of(served, settings) as channel:
        settings.tls.files.key.write_text("-----BEGIN ")
        answers = [await embed(channel, str(number)) for number in range(3)]
        told = caplog.messages.count("certificates not reloaded, the previous ones are used")
        renew()
        answers.append(await embed(channel, "3"))

    assert (answers, told) == (["0", "1", "2", "3"], 1)


@pytest.mark.parametrize("mutual", [True])
async def test_channels_are_opened_while_token_and_certificates_are_written(
    served: Serving, authority: Authority, tmp_path: Path
) -> None:
    """Workers come while a process runs, and a channel to each is opened then."""
    given, renew = client_of(authority, authority)
    settings = replace(given, service_token_file=tmp_path / "token")
    assert settings.service_token_file is not None and settings.tls.files.key is not None
    settings.service_token_file.write_text("ours")
    opening = channel_opener(settings)
    settings.service_token_file.write_text("")
    settings.tls.files.key.write_text("-----BEGIN ")
    async with opening(served.target.address) as meanwhile:
        answers = [await embed(meanwhile, "meanwhile")]
        renew()
        async with opening(served.target.address) as later:
            answers += [await embed(meanwhile, "still"), await embed(later, "later")]

    assert answers == ["meanwhile", "still", "later"]


@pytest.mark.parametrize("side", ["server", "client"])
def test_files_that_no_descriptor_was_left_to_read_are_read_later(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    pair, fresh = authority.issue("pair"), authority.issue("fresh")
    read: Callable[[], object]
    if side == "server":
        read = ShownCertificate(PemFiles(pair.certificate, pair.key, None)).context
    else:
        read = ClientCredentials(TlsSettings(pair.directory)).current
    first = read()
    put(fresh, pair)

    def refuse(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(Path, "read_bytes", refuse)
        meanwhile = read()

    assert meanwhile is first
    assert read() is not first
