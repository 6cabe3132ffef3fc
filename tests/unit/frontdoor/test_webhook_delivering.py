"""Test the times of webhook calls, with the test's clock: the journal answers at once, the caller records its calls."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar, cast

from lab.fixtures.clocks import SetClock
from lab.fixtures.frontdoor_suite import until
from pentimento.domain.jobs import RequestState, WebhookDelivery, WebhookState
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import Journal as RequestJournal
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.journal.records import AcceptedRequest
from pentimento.stores.ledger.journal.webhooks import AskedWebhook, DueWebhook, JournalWebhooks
from services.frontdoor.webhooks.calling import WebhookCaller, webhook_rules
from services.frontdoor.webhooks.delivering import (
    DeliveryLimits,
    Webhooks,
    key_as_text,
    signed_headers,
    tenant_key,
    webhook_body,
)

T = TypeVar("T")

FAST, SLOW = "https://fast.example/", "https://slow.example/"


def answered(value: T) -> "Future[T]":
    future: Future[T] = Future()
    future.set_result(value)
    return future


def due_webhook(url: str) -> DueWebhook:
    """Return a due webhook of the tenant in ?tenant=… of the address, or of acme."""
    tenant = url.partition("?tenant=")[2] or "acme"
    return DueWebhook(url, tenant, url, 0, RequestState.COMPLETED, "", 0.0, 0.0)


def host_of(due: DueWebhook) -> tuple[str, str]:
    return due.tenant, due.url.split("/")[2]


class Journal:
    """A journal with the time of each call, in order. Every look moves the clock by `look_s`."""

    def __init__(self, clock: SetClock, times: dict[str, float], look_s: float = 0.0) -> None:
        self._clock = clock
        self._times = times
        self._look_s = look_s

    def due(
        self,
        now: float,
        limit_count: int,
        but_tenants: Sequence[str] = (),
        but_hosts: Sequence[tuple[str, str]] = (),
    ) -> "Future[list[DueWebhook]]":
        self._clock.wall_s += self._look_s
        due = [due_webhook(url) for url, at in self._times.items() if at <= now]
        others = [one for one in due if one.tenant not in but_tenants and host_of(one) not in but_hosts]
        return answered(others[:limit_count])

    def overdue(self, ended_before: float, limit_count: int, but_ids: Sequence[str] = ()) -> "Future[list[DueWebhook]]":
        return answered([])

    def put_forward(self, latest: float, next_at: float) -> "Future[None]":
        return answered(None)

    def next_at(self, after: float) -> "Future[float | None]":
        return answered(min((at for at in self._times.values() if at > after), default=None))

    def note_try(self, request_id: str, delivery: WebhookDelivery, next_at: float) -> "Future[None]":
        assert delivery.state is WebhookState.DELIVERED
        del self._times[request_id]
        return answered(None)


class Caller:
    """A caller that records every call; calls to slow hosts do not end."""

    def __init__(self) -> None:
        self.called: asyncio.Queue[str] = asyncio.Queue()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        self.called.put_nowait(url)
        if url.startswith("https://slow"):
            await asyncio.Event().wait()
        return 204

    async def looked_up(self, url: str) -> None:
        pass


@asynccontextmanager
async def running_webhooks(
    clock: SetClock, journal: JournalWebhooks, limits: DeliveryLimits
) -> AsyncIterator[tuple[Webhooks, "asyncio.Queue[str]"]]:
    caller = Caller()
    rules = webhook_rules(("*.example",))
    webhooks = Webhooks(journal, clock, cast(WebhookCaller, caller), rules, lambda: (b"k" * 32,), limits)
    running = asyncio.create_task(webhooks.run_forever())
    try:
        yield webhooks, caller.called
    finally:
        running.cancel()


@asynccontextmanager
async def delivering(clock: SetClock, journal: Journal) -> AsyncIterator["asyncio.Queue[str]"]:
    async with running_webhooks(clock, cast(JournalWebhooks, journal), DeliveryLimits()) as (_, called):
        yield called


async def test_try_that_becomes_due_during_read_is_made_at_once() -> None:
    clock = SetClock()
    journal = Journal(clock, {FAST: clock.wall_s + 0.01}, look_s=0.02)

    async with delivering(clock, journal) as called:
        assert await asyncio.wait_for(called.get(), 60.0) == FAST


async def test_running_call_does_not_delay_later_ones() -> None:
    clock = SetClock()
    journal = Journal(clock, {SLOW: 0.0, FAST: clock.wall_s + 0.01})

    async with delivering(clock, journal) as called:
        first = await asyncio.wait_for(called.get(), 60.0)
        clock.wall_s += 0.02

        assert (first, await asyncio.wait_for(called.get(), 60.0)) == (SLOW, FAST)


async def test_silent_host_with_many_calls_delays_no_other_host() -> None:
    clock = SetClock()
    journal = Journal(clock, {**{f"{SLOW}{number}": 0.0 for number in range(1000)}, FAST: 0.0})

    async with delivering(clock, journal) as called:
        calls = [await asyncio.wait_for(called.get(), 60.0) for _ in range(3)]

    assert calls == [f"{SLOW}0", f"{SLOW}1", FAST]


async def called_of(times: dict[str, float], count: int) -> Counter[str]:
    """Return the running calls of each tenant once `count` calls were made."""
    clock = SetClock()
    async with delivering(clock, Journal(clock, times)) as called:
        calls = [await asyncio.wait_for(called.get(), 60.0) for _ in range(count)]
        # Any further one would have been made in the same look.
        await asyncio.sleep(0)
        assert called.empty()
    return Counter(due_webhook(url).tenant for url in calls)


def unanswered(tenant: str, host_count: int, calls_of_host: int = 1) -> dict[str, float]:
    """Return webhooks that are due at hosts that never answer."""
    hosts = [f"https://slow-{tenant}-{number}.example/" for number in range(host_count)]
    return {f"{host}{number}?tenant={tenant}": 0.0 for host in hosts for number in range(calls_of_host)}


async def test_tenant_with_hosts_that_never_answer_holds_up_itself() -> None:
    times = unanswered("greedy", 300) | {f"{FAST}?tenant=modest": 0.0}

    assert await called_of(times, 9) == {"greedy": 8, "modest": 1}


async def test_tenant_has_two_calls_of_a_host_whatever_others_have_there() -> None:
    shared = {f"{SLOW}{number}?tenant={tenant}": 0.0 for tenant in ("a", "b") for number in range(5)}

    assert await called_of(shared, 4) == {"a": 2, "b": 2}


async def test_every_tenant_has_a_call_although_all_calls_are_taken() -> None:
    times: dict[str, float] = {}
    for number in range(10):
        times |= unanswered(f"t{number}", 20)

    found = await called_of(times, 66)

    assert found == {**{f"t{number}": 8 for number in range(8)}, "t8": 1, "t9": 1}


class ForgetfulJournal(Journal):
    """Its disk is away when the first call is to be noted."""

    failures = 1

    def note_try(self, request_id: str, delivery: WebhookDelivery, next_at: float) -> "Future[None]":
        if self.failures:
            self.failures -= 1
            away: Future[None] = Future()
            away.set_exception(StoreUnavailable("ledger", "away"))
            return away
        return super().note_try(request_id, delivery, next_at)


async def test_answered_call_is_recorded_when_journal_is_back_and_not_repeated() -> None:
    journal = ForgetfulJournal(SetClock(), {FAST: 0.0})

    async with delivering(SetClock(), journal) as called, asyncio.timeout(60.0):
        await until(lambda: not journal._times)

    assert called.qsize() == 1


class LateReader(Journal):
    """Answer the second read of due webhooks only when a running call has ended."""

    def __init__(self, clock: SetClock, times: dict[str, float]) -> None:
        super().__init__(clock, times)
        self.read_count = 0
        self.late: list[tuple[Future[list[DueWebhook]], list[DueWebhook]]] = []

    def due(self, now: float, *rest: Any) -> "Future[list[DueWebhook]]":
        self.read_count += 1
        found = super().due(now, *rest)
        if self.read_count != 2:
            return found
        self.late.append((Future(), found.result()))
        return self.late[0][0]

    def note_try(self, request_id: str, delivery: WebhookDelivery, next_at: float) -> "Future[None]":
        for told, found in self.late:
            asyncio.get_running_loop().call_later(0.01, told.set_result, found)
        self.late = []
        return super().note_try(request_id, delivery, next_at)


async def test_call_that_ends_during_read_is_not_repeated() -> None:
    journal = LateReader(SetClock(), {FAST: 0.0})

    async with delivering(SetClock(), journal) as called, asyncio.timeout(60.0):
        await until(lambda: journal.read_count > 2)

    assert called.qsize() == 1


def is_abandoned(journal: RequestJournal, request_id: str) -> bool:
    delivery = journal.webhooks.delivery(request_id).result()
    return delivery is not None and delivery.state is WebhookState.FAILED


async def test_webhook_that_waits_too_long_for_host_is_abandoned_and_its_job_deleted(
    tmp_path: Path,
) -> None:
    """Two are called at once and never answered: no other one of the host has its turn."""
    clock = SetClock(1_000.0)
    with closing(open_journal(f"sqlite:///{tmp_path}/journal.sqlite", clock)) as journal:
        for number in range(4):
            accepted = AcceptedRequest(f"r{number}", "acme", b"", "", clock.wall(), detached=True)
            journal.accept(accepted, AskedWebhook(SLOW)).result()
            journal.finish(f"r{number}", RequestState.CANCELLED, "CANCELLED", "").result()
            clock.wall_s += 1.0
        async with running_webhooks(clock, journal.webhooks, DeliveryLimits(give_up_s=3600.0)) as (webhooks, called):
            for _ in range(2):
                await asyncio.wait_for(called.get(), 60.0)
            clock.wall_s += 3600.0
            clock.monotonic_s += 3600.0
            webhooks.wake()
            async with asyncio.timeout(60.0):
                await until(lambda: all(is_abandoned(journal, request_id) for request_id in ("r2", "r3")))
        forgotten = journal.forget_finished(clock.wall(), 10).result()

    assert [record.request.request_id for record in forgotten] == ["r2", "r3"]


async def test_clock_set_back_delays_no_try_beyond_pause(tmp_path: Path) -> None:
    clock = SetClock(100_000.0)
    with closing(open_journal(f"sqlite:///{tmp_path}/journal.sqlite", clock)) as journal:
        accepted = AcceptedRequest("r", "acme", b"", "", clock.wall(), detached=True)
        journal.accept(accepted, AskedWebhook(FAST)).result()
        journal.finish("r", RequestState.CANCELLED, "CANCELLED", "").result()
        tried = WebhookDelivery(WebhookState.PENDING, 3, "status 503")
        journal.webhooks.note_try("r", tried, clock.wall() + 60.0).result()
        clock.wall_s -= 20_000.0

        async with running_webhooks(clock, journal.webhooks, DeliveryLimits()) as (_, called):
            assert await asyncio.wait_for(called.get(), 60.0) == FAST


async def test_clock_that_jumps_and_returns_abandons_no_webhook(tmp_path: Path) -> None:
    clock = SetClock(100_000.0)
    with closing(open_journal(f"sqlite:///{tmp_path}/journal.sqlite", clock)) as journal:
        accepted = AcceptedRequest("r", "acme", b"", "", clock.wall(), detached=True)
        journal.accept(accepted, AskedWebhook(SLOW)).result()
        async with running_webhooks(clock, journal.webhooks, DeliveryLimits()) as (webhooks, _):
            await asyncio.sleep(0)
            journal.finish("r", RequestState.CANCELLED, "CANCELLED", "").result()
            clock.wall_s += 40 * 86_400.0

            await webhooks._give_up()

            assert not is_abandoned(journal, "r")


KEY, OLDER = b"k" * 32, b"o" * 32
DUE = DueWebhook("r-1", "acme", "https://a.example/", 0, RequestState.FAILED, "WORKER_LOST", 1000.0, 1060.5)


def test_a_body_tells_which_request_ended_how_and_nothing_else() -> None:
    assert json.loads(webhook_body(DUE)) == {
        "type": "request.failed",
        "timestamp": "1970-01-01T00:17:40.500+00:00",
        "data": {
            "request_id": "r-1",
            "state": "failed",
            "error_reason": "WORKER_LOST",
            "accepted_at_ms": 1_000_000,
            "finished_at_ms": 1_060_500,
        },
    }


def test_a_receiver_verifies_as_standard_webhooks_say() -> None:
    """Written out from the specification: HMAC-SHA256 of `id.timestamp.body` under the key behind whsec_."""
    body = webhook_body(DUE)
    headers = signed_headers((KEY,), "acme", "r-1", body, 1_800_000_000.7)
    shown = key_as_text(tenant_key(KEY, "acme"))

    secret = base64.b64decode(shown.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(secret, b"r-1.1800000000." + body, hashlib.sha256).digest()).decode()
    assert shown.startswith("whsec_")
    assert headers == {
        "webhook-id": "r-1",
        "webhook-timestamp": "1800000000",
        "webhook-signature": f"v1,{expected}",
    }


def test_tenant_keys_differ_and_older_ones_sign_too() -> None:
    both = signed_headers((KEY, OLDER), "acme", "r-1", b"{}", 5.0)["webhook-signature"].split(" ")
    alone = [signed_headers((key,), "acme", "r-1", b"{}", 5.0)["webhook-signature"] for key in (KEY, OLDER)]

    assert both == alone
    assert len({tenant_key(KEY, "acme"), tenant_key(KEY, "globex"), tenant_key(OLDER, "acme"), KEY}) == 4
