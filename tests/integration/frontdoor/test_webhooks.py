"""Test webhooks of jobs with a real server on this machine; the allow-list names it, and permits its network."""

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import ssl
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.certificates import Authority
from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, Unavailable
from pentimento.domain.jobs import RequestQuery, RequestState, WebhookDelivery, WebhookState
from pentimento.files.ed25519_keys import new_signing_key
from pentimento.stores.ledger.journal.records import AcceptedRequest, AcceptOutcome
from pentimento.stores.ledger.journal.webhooks import AskedWebhook
from services.frontdoor.webhooks.calling import WebhookCaller, WebhookFailed, webhook_rules
from tests.integration.frontdoor.webhook_server import OK, WebhookServer, running_webhook_server

LOOPBACK = "127.0.0.0/8"
UNAVAILABLE = b"HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n"


def calling(
    folder: Path, *servers: WebhookServer, networks: tuple[str, ...] = (LOOPBACK,), **changes: Any
) -> dict[str, Any]:
    """Return settings that allow webhooks to these servers in these networks."""
    hosts = [f"{plain}127.0.0.1:{server.port}" for server in servers for plain in ("", "http://")]
    keys = folder / "keys"
    if not keys.exists():
        keys.write_text(new_signing_key())
    return {
        "signing_key_file": keys,
        "webhook_hosts": (*hosts, *networks),
        "webhook_timeout_s": 60.0,
        "webhook_pause_s": 0.01,
        **changes,
    }


def url_of(server: WebhookServer, path: str = "/done", scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{server.port}{path}"


async def delivered(suite: FrontdoorSuite, request_id: str) -> WebhookDelivery:
    """Return the terminal state of its webhook."""
    while True:
        webhook = (await suite.client.get_request(request_id, omit_image=True)).webhook
        assert webhook is not None
        if webhook.state is not WebhookState.PENDING:
            return webhook
        await asyncio.sleep(0.01)


async def ended(suite: FrontdoorSuite, request_id: str) -> None:
    while True:
        if (await suite.client.get_request(request_id, omit_image=True)).state.terminal:
            return
        await asyncio.sleep(0.01)


async def test_end_of_job_is_sent_and_signed(folder: Path, worker: PacedWorker) -> None:
    async with running_webhook_server() as server, running_suite(folder, **calling(folder, server)) as suite:
        request_id = (await suite.client.submit(REQUEST, webhook_url=url_of(server, "/done?a=1"))).request_id
        delivery = await delivered(suite, request_id)
        secret = base64.b64decode((await suite.client.webhook_key()).removeprefix("whsec_"))

    ((first, headers, body),) = server.requests
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    assert delivery == WebhookDelivery(WebhookState.DELIVERED, 1)
    assert first == "POST /done?a=1 HTTP/1.1"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert (headers["webhook-id"], json.loads(body)["data"]["request_id"]) == (request_id, request_id)
    assert json.loads(body)["type"] == "request.completed"
    assert REQUEST.prompt not in body.decode()


async def test_end_of_several_images_is_sent_once_for_their_job(folder: Path, worker: PacedWorker) -> None:
    async with running_webhook_server() as server, running_suite(folder, **calling(folder, server)) as suite:
        several = replace(REQUEST, image_count=3)
        accepted = await suite.client.submit(several, webhook_url=url_of(server))
        delivery = await delivered(suite, accepted.request_id)
        images = [await suite.client.get_request(one, omit_image=True) for one in accepted.image_request_ids]

    ((_, headers, body),) = server.requests
    data = json.loads(body)["data"]
    assert delivery == WebhookDelivery(WebhookState.DELIVERED, 1)
    assert (headers["webhook-id"], data["request_id"]) == (accepted.request_id, accepted.request_id)
    assert (json.loads(body)["type"], data["state"]) == ("request.completed", "completed")
    assert [one.webhook for one in images] == [None] * 3
    assert {one.state for one in images} == {RequestState.COMPLETED}


async def test_image_ended_before_others_are_accepted_sends_no_webhook(
    folder: Path, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_webhook_server() as server, running_suite(folder, **calling(folder, server)) as suite:
        journal = suite.frontdoor.journal
        accept, first, last_asked = journal.accept, "", Future[AcceptOutcome]()

        def accept_all_but_the_last(record: AcceptedRequest, webhook: AskedWebhook | None) -> Future[AcceptOutcome]:
            nonlocal first
            if record.request_id.endswith("-1"):
                return last_asked
            first = record.request_id
            return accept(record, webhook)

        monkeypatch.setattr(journal, "accept", accept_all_but_the_last)
        several = replace(REQUEST, image_count=2)
        submitting = asyncio.ensure_future(suite.client.submit(several, webhook_url=url_of(server)))
        await worker.wait_until(lambda: worker.finished)
        await ended(suite, first)

        due = await asyncio.wrap_future(journal.webhooks.due(0.0, 5))
        delivery = await asyncio.wrap_future(journal.webhooks.delivery(first, first.removesuffix("-0")))
        last_asked.set_exception(Unavailable("LEDGER_UNAVAILABLE", "gone"))
        with pytest.raises(Unavailable):
            await submitting

    assert (due, delivery) == ([], WebhookDelivery(WebhookState.PENDING, 0))


async def test_failed_call_is_retried_under_same_id(folder: Path, worker: PacedWorker) -> None:
    answers = [UNAVAILABLE, b"", b"no HTTP\r\n", b"HTTP/1.1 103 Early\r\nA: b\r\n\r\n" + OK]
    async with (
        running_webhook_server(answers=answers) as server,
        running_suite(folder, **calling(folder, server)) as suite,
    ):
        request_id = (await suite.client.submit(REQUEST, webhook_url=url_of(server))).request_id
        delivery = await delivered(suite, request_id)

    assert delivery == WebhookDelivery(WebhookState.DELIVERED, 4)
    assert {headers["webhook-id"] for _, headers, _ in server.requests} == {request_id}


@pytest.mark.parametrize(
    ("answer", "settings", "tries", "error"),
    [
        (UNAVAILABLE, {"webhook_tries": 3}, 3, "status 503"),
        (b"HTTP/1.1 410 Gone\r\n\r\n", {}, 1, "status 410"),
        (b"HTTP/1.1 307 Moved\r\nLocation: INSIDE\r\nContent-Length: 0\r\n\r\n", {"webhook_tries": 2}, 2, "status 307"),
        (
            OK,
            {"networks": (), "webhook_tries": 1},
            0,
            "its host resolves to an address that may not be called",
        ),
    ],
    ids=["tries used up", "host gone", "redirect", "address inside"],
)
async def test_webhook_fails_permanently(
    folder: Path, worker: PacedWorker, answer: bytes, settings: dict[str, Any], tries: int, error: str
) -> None:
    async with running_webhook_server() as inside, running_webhook_server() as server:
        server.answers = [answer.replace(b"INSIDE", url_of(inside).encode())]
        async with running_suite(folder, **calling(folder, server, inside, **settings)) as suite:
            request_id = (await suite.client.submit(REQUEST, webhook_url=url_of(server))).request_id
            delivery = await delivered(suite, request_id)

    assert delivery == WebhookDelivery(WebhookState.FAILED, max(tries, 1), error)
    assert (len(server.requests), inside.connections) == (tries, 0)
    assert (server.connections > 0) is (tries > 0)


async def test_forbidden_webhook_url_is_refused_before_acceptance(folder: Path, worker: PacedWorker) -> None:
    async with running_webhook_server() as server, running_suite(folder, **calling(folder, server)) as suite:
        with pytest.raises(FailedPrecondition) as caught:
            await suite.client.submit(REQUEST, webhook_url="http://127.0.0.1:1/")
        with pytest.raises(InvalidArgument, match=r"webhook\.url"):
            await suite.client.submit(REQUEST, webhook_url="file:///etc/passwd")

        assert caught.value.reason == "WEBHOOK_REFUSED"
        assert (await suite.client.list_requests(RequestQuery())).requests == ()


async def test_webhooks_outlive_their_frontdoor(folder: Path, worker: PacedWorker) -> None:
    """Test the webhook of a job that ended before the kill, and of a job that ends after it."""
    async with running_webhook_server(answers=[None]) as server:
        async with running_suite(folder, **calling(folder, server)) as suite:
            first = (await suite.client.submit(REQUEST, webhook_url=url_of(server))).request_id
            await server.wait_for(1)
            worker.hold.clear()
            second = (await suite.client.submit(REQUEST, webhook_url=url_of(server))).request_id
            await worker.wait_until(lambda: worker.running)
        server.answers = [OK]
        worker.hold.set()

        async with running_suite(folder, **calling(folder, server)) as suite:
            deliveries = [await delivered(suite, request_id) for request_id in (first, second)]

    assert [delivery.state for delivery in deliveries] == [WebhookState.DELIVERED] * 2
    assert {headers["webhook-id"] for _, headers, _ in server.requests[1:]} == {first, second}


async def test_pending_webhooks_are_abandoned_when_disabled(folder: Path, worker: PacedWorker) -> None:
    """Otherwise their requests would be stored for ever."""
    async with running_webhook_server(answers=[None]) as server:
        async with running_suite(folder, **calling(folder, server)) as suite:
            request_id = (await suite.client.submit(REQUEST, webhook_url=url_of(server))).request_id
            await server.wait_for(1)

        async with running_suite(folder) as suite, asyncio.timeout(120):
            delivery = await delivered(suite, request_id)

    assert delivery == WebhookDelivery(WebhookState.FAILED, 1, "webhook: this deployment calls none")


async def test_silent_host_delays_no_other_webhook(folder: Path, worker: PacedWorker) -> None:
    async with running_webhook_server(answers=[None]) as hanging, running_webhook_server() as server:
        async with running_suite(folder, **calling(folder, hanging, server)) as suite:
            stuck = [await suite.client.submit(REQUEST, webhook_url=url_of(hanging)) for _ in range(4)]
            await hanging.wait_for(2)
            other = await suite.client.submit(REQUEST, webhook_url=url_of(server))

            assert await delivered(suite, other.request_id) == WebhookDelivery(WebhookState.DELIVERED, 1)
            first = await suite.client.get_request(stuck[0].request_id, omit_image=True)
            assert first.webhook == WebhookDelivery(WebhookState.PENDING)
        assert len(hanging.requests) == 2


async def test_servers_are_verified_by_named_authorities(folder: Path, worker: PacedWorker) -> None:
    ours, others = Authority(folder, "ours"), Authority(folder, "others")
    deliveries = []
    for authority in (ours, others):
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        pair = authority.issue(f"server-{authority.directory.name}")
        tls.load_cert_chain(pair.certificate, pair.key)
        async with running_webhook_server(tls) as server:
            settings = calling(folder, server, webhook_ca_file=ours.certificate, webhook_tries=1)
            async with running_suite(folder, **settings) as suite:
                submitted = await suite.client.submit(REQUEST, webhook_url=url_of(server, scheme="https"))
                deliveries.append(await delivered(suite, submitted.request_id))

    assert deliveries == [
        WebhookDelivery(WebhookState.DELIVERED, 1),
        WebhookDelivery(WebhookState.FAILED, 1, "TLS failed"),
    ]


async def test_webhook_connects_to_the_checked_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may resolve to an allowed address when it is checked and to another one afterwards (DNS rebinding)."""
    asked, real = [], socket.getaddrinfo

    def resolve(host: str, port: int, *rest: Any, **how: Any) -> list[Any]:
        if host != "rebinds.example":
            return real(host, port, *rest, **how)
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
        return [(2, 1, 6, "", (address, port))]

    async with running_webhook_server() as server:
        rules = webhook_rules((f"http://rebinds.example:{server.port}", "127.0.0.1/32"))
        caller = WebhookCaller(rules, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), 60.0)
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        url = f"http://rebinds.example:{server.port}/"

        assert await caller.post(url, {}, b"{}") == 204
        with pytest.raises(WebhookFailed, match="may not be called"):
            await caller.post(url, {}, b"{}")

    assert asked == ["rebinds.example"] * 2
    assert server.requests[0][1]["host"] == f"rebinds.example:{server.port}"


@pytest.mark.slow
async def test_slow_resolver_blocks_neither_threads_nor_other_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An abandoned lookup runs until the resolver answers."""
    asked, let_go = [], threading.Event()

    def resolve(host: str, port: int, *rest: Any, **how: Any) -> list[Any]:
        asked.append(host)
        let_go.wait(60)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    rules = webhook_rules(("slow.example",))
    caller = WebhookCaller(rules, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), 0.05)
    try:
        # More often than the pool has threads.
        for _ in range(40):
            with pytest.raises(WebhookFailed, match="in time"):
                await caller.post("https://slow.example/", {}, b"{}")

        assert await asyncio.wait_for(asyncio.to_thread(lambda: True), 60)
        assert asked == ["slow.example"]
    finally:
        let_go.set()


@pytest.mark.parametrize(
    ("answer", "timeout_s", "words"),
    [
        (b"", 60.0, "no connection, or no answer"),
        (b"HTTP/1.1 20", 60.0, "no connection, or no answer"),
        (b"HTTP/2 200\r\n\r\n", 60.0, "no connection, or no answer"),
        (b"A" * 100_000, 60.0, "no connection, or no answer"),
        (b"HTTP/1.1 103 A\r\n\r\n" * 200, 60.0, "no connection, or no answer"),
        (b"HTTP/1.1 99 X\r\n\r\n", 60.0, "no connection, or no answer"),
        (None, 0.05, "no answer in time"),
    ],
    ids=["nothing", "half a line", "no HTTP/1", "endless line", "endless interim answers", "no status", "silence"],
)
async def test_invalid_webhook_answer_is_a_failure(answer: bytes | None, timeout_s: float, words: str) -> None:
    async with running_webhook_server(answers=[answer]) as server:
        rules = webhook_rules((f"http://127.0.0.1:{server.port}", LOOPBACK))
        caller = WebhookCaller(rules, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), timeout_s)
        with pytest.raises(WebhookFailed, match=words):
            await caller.post(url_of(server), {}, b"{}")
