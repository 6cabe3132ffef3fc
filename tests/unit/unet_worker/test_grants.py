"""Whom a worker believes when no key is set."""

from dataclasses import replace

from pentimento.domain.clock import SystemClock
from pentimento.domain.generation import CacheGrant, LatentSlot
from services.unet_worker.cache.grants import GrantGuard
from tests.unit.unet_worker.orders import order_with

GRANT = CacheGrant("grant", (LatentSlot(2, "cache/a"),), "cache/b", 60_000)


def test_without_a_key_a_worker_that_asks_for_tokens_believes_nobody() -> None:
    guard = GrantGuard(None, SystemClock(), open_to_all=False)

    admitted = guard.admitted(replace(order_with(), cache_grant=GRANT))

    assert admitted.cache_grant is None
    assert admitted.notes == ("cache: nothing stored, its grant is not signed",)


def test_without_a_key_a_worker_that_everybody_may_call_believes_everybody() -> None:
    guard = GrantGuard(None, SystemClock(), open_to_all=True)

    admitted = guard.admitted(replace(order_with(), cache_grant=GRANT))

    assert (admitted.cache_grant, admitted.notes) == (GRANT, ())
