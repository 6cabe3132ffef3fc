"""Deliver the webhooks of ended jobs, until a receiver answers or the tries end. No request waits for them: they are
read from the journal, where the acceptance writes them, so any later active frontdoor delivers them."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pentimento.domain.clock import Backoff, Clock, SteadyClock
from pentimento.domain.errors import FailedPrecondition, PentimentoError
from pentimento.domain.jobs import WebhookDelivery, WebhookState
from pentimento.rpc.watched_file import SharedKeys
from pentimento.stores.ledger.journal.webhooks import DueWebhook, JournalWebhooks
from services.frontdoor.journal.commits import until_durable
from services.frontdoor.metrics import WEBHOOKS
from services.frontdoor.webhooks.calling import WebhookCaller, WebhookFailed, WebhookRules

logger = logging.getLogger(__name__)

_LOOKED_AT_ONCE = 200
# Concurrent calls. At this number, a tenant without a call may still begin one.
_AT_ONCE = 64
# A tenant does not block other tenants, and one of its slow hosts does not block its other hosts.
_AT_ONCE_PER_TENANT = 8
_AT_ONCE_PER_HOST = 2
_LONGEST_WAIT_S = 60.0
_GONE = 410
_NOTE_RETRIES = Backoff(first_s=0.05, max_s=30.0)


@dataclass(frozen=True)
class DeliveryLimits:
    """Limit the tries of a webhook, the pauses between them, and the seconds after its job's end when it fails
    regardless of its tries. Without the last limit, webhooks would pile up for a host that does not answer while jobs
    end faster than they are tried."""

    try_count: int = 12
    backoff: Backoff = Backoff(first_s=5.0, max_s=3600.0)
    give_up_s: float = 86_400.0


@dataclass
class Webhooks:
    """Deliver webhooks. `keys` returns the deployment's current keys, newest first; none if webhooks are off."""

    journal: JournalWebhooks
    clock: Clock
    caller: WebhookCaller
    rules: WebhookRules
    keys: SharedKeys
    limits: DeliveryLimits
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _calls: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _tenants: Counter[str] = field(default_factory=Counter, init=False)
    # Calls by tenant and host.
    _hosts: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    _random: random.Random = field(default_factory=random.Random, init=False)
    _set_right_at: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        # A failed webhook stays failed, however the clock moves later.
        self._steady_clock = SteadyClock(self.clock)

    def key_of(self, tenant: str) -> str:
        """Return the key that signs the tenant's webhooks. Raises FailedPrecondition WEBHOOKS_OFF."""
        if not self.rules.hosts:
            raise FailedPrecondition("WEBHOOKS_OFF", "this deployment calls no webhooks")
        return key_as_text(tenant_key(self.keys()[0], tenant))

    def wake(self) -> None:
        """Look again soon: a request has ended."""
        # If no webhooks are called, earlier ones can wait until they expire.
        if self.rules.hosts:
            self._news.set()

    async def run_forever(self) -> None:
        """Call due webhooks until cancelled; running calls are then aborted, and due again. If the operator no longer
        allows webhooks, fail the earlier ones: their requests are stored until then."""
        try:
            while True:
                self._news.clear()
                wait_s = await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._news.wait()
        finally:
            for call in tuple(self._calls.values()):
                call.cancel()

    async def _look(self) -> float:
        """Begin due calls. Return for how many seconds nothing else is due."""
        looked_at = self.clock.wall()
        try:
            await self._set_right()
            # The rows read may all be for hosts that are already busy: the next look excludes those hosts.
            while await self._begin_some(looked_at):
                pass
            next_at = await asyncio.wrap_future(self.journal.next_at(looked_at))
        except PentimentoError as error:
            logger.warning("webhooks cannot be read", extra={"reason": error.reason})
            return _LONGEST_WAIT_S
        # Webhooks due at `looked_at` are called, or wait for a call to end, which wakes this loop. The next may be due
        # by now.
        return _LONGEST_WAIT_S if next_at is None else min(next_at - self.clock.wall(), _LONGEST_WAIT_S)

    async def _set_right(self) -> None:
        """Fail overdue webhooks now and then, and move tries that are further away than the longest pause, however the
        clock was set."""
        if self.clock.monotonic() - self._set_right_at < _LONGEST_WAIT_S:
            return
        self._set_right_at = self.clock.monotonic()
        now = self.clock.wall()
        await asyncio.wrap_future(self.journal.put_forward(now + self.limits.backoff.max_s, now))
        await self._give_up()

    async def _give_up(self) -> None:
        after_s, count = self.limits.give_up_s, 0
        error = f"not delivered within {after_s / 3600:.3g} h of its job's end"
        # The wall clock counts if it was set back: requests that end now end by it.
        ended_before = min(self._steady_clock.wall(), self.clock.wall()) - after_s
        while overdue := await asyncio.wrap_future(
            self.journal.overdue(ended_before, _LOOKED_AT_ONCE, tuple(self._calls))
        ):
            failed = (WebhookDelivery(WebhookState.FAILED, one.try_count, error) for one in overdue)
            noted = [self.journal.note_try(one.request_id, end, 0.0) for one, end in zip(overdue, failed, strict=True)]
            await asyncio.gather(*map(asyncio.wrap_future, noted))
            WEBHOOKS.labels(WebhookState.FAILED.value).inc(len(overdue))
            count += len(overdue)
        if count:
            logger.warning("webhooks are dropped that waited too long for their hosts", extra={"count": count})

    async def _begin_some(self, now: float) -> bool:
        """Begin due calls. Return whether any began."""
        share = self._share()
        full_tenants = [tenant for tenant, count in self._tenants.items() if count >= share]
        full_hosts = [one for one, count in self._hosts.items() if count >= _AT_ONCE_PER_HOST]
        # The journal may not yet show the end of a call that ends during the read; its end wakes the loop.
        under_way = frozenset(self._calls)
        due = await asyncio.wrap_future(self.journal.due(now, _LOOKED_AT_ONCE, full_tenants, full_hosts))
        begun = [one for one in due if one.request_id not in under_way and self._begin(one)]
        return bool(begun)

    def _share(self) -> int:
        """Return how many concurrent calls a tenant may have."""
        return _AT_ONCE_PER_TENANT if len(self._calls) < _AT_ONCE else 1

    def _begin(self, due: DueWebhook) -> bool:
        of_host = due.tenant, due.url.split("/")[2]
        full = self._tenants[due.tenant] >= self._share() or self._hosts[of_host] >= _AT_ONCE_PER_HOST
        if full or due.request_id in self._calls:
            return False
        self._tenants[due.tenant] += 1
        self._hosts[of_host] += 1
        call = asyncio.get_running_loop().create_task(self._call(due))
        self._calls[due.request_id] = call
        call.add_done_callback(lambda _: self._end(due.request_id, of_host))
        return True

    def _end(self, request_id: str, of_host: tuple[str, str]) -> None:
        del self._calls[request_id]
        self._tenants -= Counter([of_host[0]])
        self._hosts -= Counter([of_host])
        self._news.set()

    async def _call(self, due: DueWebhook) -> None:
        delivery = await self._try(due)
        WEBHOOKS.labels(delivery.state.value).inc()
        wait_s = self.limits.backoff.random_delay_s(delivery.try_count, self._random)
        next_at = self.clock.wall() + wait_s
        # A receiver that has answered must not be called again.
        await until_durable(lambda: self.journal.note_try(due.request_id, delivery, next_at), _NOTE_RETRIES)
        # A resolver that does not answer outlasts the call, on a thread that other tenants would lack.
        await self.caller.looked_up(due.url)

    async def _try(self, due: DueWebhook) -> WebhookDelivery:
        tries = due.try_count + 1
        body = webhook_body(due)
        headers = signed_headers(self.keys(), due.tenant, due.job_id, body, self.clock.wall())
        try:
            status = await self.caller.post(due.url, headers, body)
        except WebhookFailed as failed:
            return self._failed(tries, str(failed))
        except PentimentoError as refused:
            # The operator has changed the allowed addresses since the job was accepted.
            return WebhookDelivery(WebhookState.FAILED, tries, refused.message)
        if 200 <= status < 300:
            return WebhookDelivery(WebhookState.DELIVERED, tries)
        if status == _GONE:
            return WebhookDelivery(WebhookState.FAILED, tries, f"status {status}")
        return self._failed(tries, f"status {status}")

    def _failed(self, tries: int, error: str) -> WebhookDelivery:
        state = WebhookState.FAILED if tries >= self.limits.try_count else WebhookState.PENDING
        return WebhookDelivery(state, tries, error)


_PURPOSE = b"pentimento webhook 1\n"


def tenant_key(key: bytes, tenant: str) -> bytes:
    return hmac.digest(key, _PURPOSE + tenant.encode(), hashlib.sha256)


def key_as_text(key: bytes) -> str:
    return "whsec_" + base64.b64encode(key).decode()


def webhook_body(due: DueWebhook) -> bytes:
    """Return the body to post: the job that ended, how and when; neither prompt nor image. JSON in UTF-8."""
    told = {
        "type": f"request.{due.state.value}",
        "timestamp": datetime.fromtimestamp(due.finished_at, UTC).isoformat(timespec="milliseconds"),
        "data": {
            "request_id": due.job_id,
            "state": due.state.value,
            "error_reason": due.error_reason,
            "accepted_at_ms": round(due.accepted_at * 1000),
            "finished_at_ms": round(due.finished_at * 1000),
        },
    }
    return json.dumps(told, separators=(",", ":")).encode()


def signed_headers(keys: Sequence[bytes], tenant: str, message_id: str, body: bytes, now: float) -> Mapping[str, str]:
    """Return the headers that sign a body at `now` (seconds since 1970) with each of the deployment's keys: a receiver
    accepts any. `message_id` stays the same across tries."""
    timestamp = str(int(now))
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    digests = (hmac.digest(tenant_key(key, tenant), signed, hashlib.sha256) for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join("v1," + base64.b64encode(digest).decode() for digest in digests),
    }
