"""Journal and object store that fail for a while; the stores themselves are the real ones."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from pentimento.domain.errors import Unavailable
from pentimento.stores.errors import StoreUnavailable
from pentimento.testing.frontdoor_suite import FrontdoorSuite


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
