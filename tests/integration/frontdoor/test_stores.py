"""Journal and object store that fail for a while; the stores themselves are the real ones."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from lab.fixtures.frontdoor_suite import FrontdoorSuite
from pentimento.domain.errors import Unavailable
from pentimento.stores.errors import StoreUnavailable, UnansweredCommit


def failing_first(method: Callable[..., "Future[Any]"], times: int) -> Callable[..., "Future[Any]"]:
    """The method of a journal, after so many calls that fail."""
    left = [StoreUnavailable("ledger", "away")] * times

    def call(*arguments: Any) -> "Future[Any]":
        if not left:
            return method(*arguments)
        failed: Future[Any] = Future()
        failed.set_exception(left.pop())
        return failed

    return call


@pytest.mark.parametrize("method", ["record_route", "start_attempt", "commit_result"])
async def test_an_accepted_request_waits_for_its_journal(
    suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    journal = suite.frontdoor.parts.journal
    monkeypatch.setattr(journal, method, failing_first(getattr(journal, method), times=2))

    completed = await suite.paint()

    assert (await suite.client.get_request(completed.request_id)).completed == completed


async def test_a_request_that_cannot_be_journalled_is_not_accepted(
    suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = suite.frontdoor.parts.journal
    monkeypatch.setattr(journal, "accept", failing_first(journal.accept, times=1))

    with pytest.raises(Unavailable) as caught:
        await suite.paint()

    assert caught.value.reason == "STORE_UNAVAILABLE"
    assert (await suite.operator.status()).accepted_count == 0
    assert (await suite.paint()).image


async def test_a_request_that_may_have_been_journalled_is_asked_after_until_that_is_known(
    suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused, it would lie there with its key, and nobody would paint it."""
    journal = suite.frontdoor.parts.journal
    accept, lost = journal.accept, [UnansweredCommit("ledger", "away"), StoreUnavailable("ledger", "away")]

    def accept_without_answer(*arguments: Any) -> "Future[Any]":
        if not lost:
            return accept(*arguments)
        error = lost.pop(0)
        if isinstance(error, UnansweredCommit):
            accept(*arguments).result()
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed

    monkeypatch.setattr(journal, "accept", accept_without_answer)

    painted = await suite.paint(idempotency_key="key")

    assert (await suite.paint(idempotency_key="key")).request_id == painted.request_id
    assert await asyncio.wrap_future(journal.unfinished()) == []
