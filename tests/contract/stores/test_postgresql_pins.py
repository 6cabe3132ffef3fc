"""Test simultaneous pins and deletions of several processes over one PostgreSQL server."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from typing import Any

import pytest
from sqlalchemy import Connection

from lab.fixtures.clocks import SetClock
from lab.fixtures.postgresql import PostgresqlServer
from pentimento.domain.errors import NotFound
from pentimento.stores.ledger.cache import pins as cache_pins
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from pentimento.stores.ledger.cache.records import ObjectPin
from tests.contract.stores.cache_records import add, reference
from tests.contract.stores.test_postgresql_ledger import waiting_count

Begin = Callable[[], "Future[Any]"]
LATENT, SHARED = reference("a/5"), "*shared*"
WANTED = ObjectPin("tenant", "r1", LATENT, 2000.0)


@pytest.fixture
def url(postgresql: PostgresqlServer) -> str:
    """Create a ledger with one evicted entry. Its single object is due for deletion."""
    url = postgresql.new_database()
    with closing(open_cache_ledger(url, SetClock())) as ledger:
        entry_id = add(ledger, "a", (5,))
        ledger.doom([entry_id], grace_s=0).result()
        ledger.forget_entries([entry_id]).result()
    return url


@pytest.fixture
def ledgers(url: str) -> Iterator[list[CacheLedger]]:
    """Open it three times, as three gateways do."""
    with ExitStack() as opened:
        yield [opened.enter_context(closing(open_cache_ledger(url, SetClock()))) for _ in range(3)]


def begin_in_the_middle(patch: pytest.MonkeyPatch, url: str, *others: Begin) -> "list[Future[Any]]":
    """Begin the others in the middle of the first pin or claim. It continues once each has ended or waits for a lock.
    The returned list then has their futures."""
    begun: list[Future[Any]] = []
    in_the_middle = cache_pins._DROP_ENDED.change

    def go_on(connection: Connection, **values: float) -> int:
        if not begun:
            for begin in others:
                begun.append(begin())
                while sum(other.done() for other in begun) + waiting_count(url) < len(begun):
                    pass
        return in_the_middle(connection, **values)

    patch.setattr(cache_pins._DROP_ENDED, "change", go_on)
    return begun


def test_object_under_claim_is_not_pinned(
    url: str, ledgers: list[CacheLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeping, one, another = ledgers
    pins = begin_in_the_middle(monkeypatch, url, lambda: one.pin(WANTED, SHARED), lambda: another.pin(WANTED, SHARED))

    assert sweeping.claim_deletion(["a/5"]).result() == ["a/5"]

    for pin in pins:
        with pytest.raises(NotFound):
            pin.result()
    assert sweeping.check_integrity() == []


def test_object_pinned_twice_at_once_has_one_pin(
    url: str, ledgers: list[CacheLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeping, one, another = ledgers
    others = begin_in_the_middle(
        monkeypatch, url, lambda: sweeping.claim_deletion(["a/5"]), lambda: another.pin(WANTED, SHARED)
    )

    one.pin(WANTED, SHARED).result()

    assert [other.result() for other in others] == [[], None]
    assert sweeping.kept_by_pins() == [LATENT]
    assert one.unpin("tenant", "r1").result() == 1
