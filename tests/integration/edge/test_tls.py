"""Test HTTP over TLS, with a frontdoor over mutual TLS, and tokens."""

import base64
import ssl
import tracemalloc
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from lab.fixtures.certificates import Authority, Pair
from lab.fixtures.frontdoor_suite import running_suite
from lab.fixtures.paced_worker import PacedWorker, image_of
from pentimento.domain.tenants import Role
from pentimento.rpc import token_entry, watched_file
from pentimento.rpc.settings import TlsSettings
from tests.integration.edge.conftest import files_of, signing_keys
from tests.support.silent_connections import silent_connections

ASKED = {"prompt": "a red circle", "num_inference_steps": 1}
SHOWN = {"Authorization": "Bearer a-token"}


@dataclass(frozen=True)
class GuardedEdge:
    """`authority` signed the certificates of edge and frontdoor."""

    url: str
    folder: Path
    authority: Authority

    def http(self, shown: Pair | None = None) -> httpx.AsyncClient:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        return httpx.AsyncClient(base_url=self.url, verify=context, timeout=60)


@pytest.fixture
def client_authority() -> bool:
    return False


@pytest.fixture
async def guarded(
    folder: Path, worker: PacedWorker, client_authority: bool, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[GuardedEdge]:
    from lab.fixtures.edge_suite import running_edge

    ours = Authority(folder, "ours")
    shown = ours.issue("server").directory
    tokens = folder / "tokens.toml"
    tokens.write_text(token_entry("a-token", "acme", frozenset({Role.USER})))
    tls = {"tls_dir": shown, "mutual_tls": True}
    async with running_suite(folder, token_file=tokens, tls=tls, signing_key_file=signing_keys(folder)) as suite:
        frontdoor = suite.frontdoor.server.bound_addresses[-1]
        options = {
            "tls": TlsSettings(shown, client_authority),
            "frontdoor_tls": TlsSettings(ours.issue("edge").directory),
            **files_of(folder),
        }
        # Use asyncio's own bound: the frontdoor of this process has lowered it.
        monkeypatch.setattr(SSLProtocol, "max_size", 256 * 1024)
        async with running_edge(folder, frontdoor, **options) as running:  # type: ignore[arg-type]
            yield GuardedEdge(f"https://{running.listener.address}", folder, ours)


async def test_image_and_its_url_are_served_over_tls_with_a_token(guarded: GuardedEdge, worker: PacedWorker) -> None:
    async with guarded.http() as http:
        ready = await http.get("/ready")
        nobody = await http.post("/v1/images/generations", json=ASKED)
        answer = await http.post("/v1/images/generations", json={**ASKED, "response_format": "url"}, headers=SHOWN)
        streamed = await http.post("/v1/images/generations", json={**ASKED, "stream": True}, headers=SHOWN)
        url = answer.json()["data"][0]["url"]
        read = await http.get(url)

    assert (ready.status_code, nobody.status_code, nobody.headers["www-authenticate"]) == (200, 401, "Bearer")
    assert url.startswith(f"{guarded.url}/v1/files/")
    assert read.content == image_of(worker.executed[0])
    assert base64.b64encode(image_of(worker.executed[1])).decode() in streamed.text


async def test_caller_without_tls_or_known_authority_is_refused(guarded: GuardedEdge) -> None:
    others = GuardedEdge(guarded.url, guarded.folder, Authority(guarded.folder, "others"))
    plain = guarded.url.replace("https:", "http:")
    async with others.http() as mistrusting, httpx.AsyncClient(base_url=plain, timeout=60) as without:
        with pytest.raises(httpx.ConnectError):
            await mistrusting.get("/health")
        with pytest.raises(httpx.TransportError):
            await without.get("/health")
    async with guarded.http() as http:
        assert (await http.get("/health")).status_code == 200


@pytest.mark.parametrize("client_authority", [True])
async def test_where_clients_must_show_a_certificate_they_must_over_http_too(guarded: GuardedEdge) -> None:
    strangers = Authority(guarded.folder, "strangers")
    for shown in (None, strangers.issue("stranger")):
        async with guarded.http(shown) as http:
            with pytest.raises(httpx.TransportError):
                await http.get("/health")

    async with guarded.http(guarded.authority.issue("known")) as http:
        assert (await http.post("/v1/images/generations", json=ASKED, headers=SHOWN)).status_code == 200


@pytest.mark.slow  # counts the memory of its whole process
async def test_silent_connections_hold_little(guarded: GuardedEdge) -> None:
    address = ("127.0.0.1", int(guarded.url.rpartition(":")[2]))
    async with guarded.http() as http:
        await http.get("/health")
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            with silent_connections(address, 40):
                await http.get("/health")  # The earlier connections were accepted before this answer.
                held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert (held - before) / 40 < 64 * 1024


async def test_new_callers_are_served_while_certificates_are_written(guarded: GuardedEdge) -> None:
    """The edge opens a connection for each new caller, from files that may be incomplete."""
    (guarded.folder / "edge" / "tls.key").write_text("-----BEGIN ")
    async with guarded.http() as http:
        answer = await http.post("/v1/images/generations", json=ASKED, headers=SHOWN)

    assert answer.status_code == 200


def certificate_shown(answer: httpx.Response) -> str:
    secured = answer.extensions["network_stream"].get_extra_info("ssl_object")
    return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True))


@pytest.mark.parametrize("client_authority", [True])
async def test_a_renewed_certificate_is_shown_to_new_connections(
    guarded: GuardedEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_file, "CHECK_INTERVAL_S", 0.0)
    renewed, known = guarded.authority.issue("renewed"), guarded.authority.issue("known")
    pem = renewed.certificate.read_text()
    async with guarded.http(known) as before, guarded.http(known) as after:
        first = certificate_shown(await before.get("/health"))
        renewed.key.replace(guarded.folder / "server" / "tls.key")
        renewed.certificate.replace(guarded.folder / "server" / "tls.crt")
        shown = certificate_shown(await after.get("/health")), certificate_shown(await before.get("/health"))
    async with guarded.http() as nobody:
        with pytest.raises(httpx.TransportError):
            await nobody.get("/health")

    assert shown == (pem, first)
    assert first != pem
