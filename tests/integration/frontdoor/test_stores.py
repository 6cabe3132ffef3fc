"""Journal and object store that fail for a while; the stores themselves are the real ones."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from pentimento.domain.errors import ResourceExhausted, Unavailable
from pentimento.domain.image_request import ImageRequest
from pentimento.domain.requests import RequestState
from pentimento.stores.errors import StoreFull, StoreUnavailable
from tests.integration.frontdoor.suite import REQUEST, Suite


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
    suite: Suite, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    journal = suite.frontdoor._journal
    monkeypatch.setattr(journal, method, failing_first(getattr(journal, method), times=2))

    completed = await suite.paint()

    assert (await suite.client.get_request(completed.request_id)).completed == completed


async def test_a_request_that_cannot_be_journalled_is_not_accepted(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = suite.frontdoor._journal
    monkeypatch.setattr(journal, "accept", failing_first(journal.accept, times=1))

    with pytest.raises(Unavailable) as caught:
        await suite.paint()

    assert caught.value.reason == "STORE_UNAVAILABLE"
    assert (await suite.operator.status()).accepted_count == 0
    assert (await suite.paint()).image


async def test_a_picture_is_kept_until_the_store_takes_it(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = suite.frontdoor._results._objects
    put, left = objects.put, [StoreUnavailable("objects", "away")] * 2

    def put_later(*arguments: Any) -> Any:
        if left:
            raise left.pop()
        return put(*arguments)

    monkeypatch.setattr(objects, "put", put_later)

    assert (await suite.paint()).image


async def test_a_picture_that_never_fits_the_store_fails_its_request_by_the_deadline(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> Any:
        raise StoreFull("objects", "no space left")

    monkeypatch.setattr(suite.frontdoor._results._objects, "put", never)
    request = ImageRequest(REQUEST.prompt, num_inference_steps=1, deadline_ms=300)
    stream = suite.client.generate(request)
    request_id = await suite.accepted(stream)

    with pytest.raises(ResourceExhausted) as caught:
        async for _ in stream:
            pass

    status = await suite.client.get_request(request_id)
    assert (caught.value.reason, status.state) == ("STORE_FULL", RequestState.FAILED)
