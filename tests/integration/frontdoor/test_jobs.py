"""Test requests without their clients: submitted, left, listed, attached to, fetched by id."""

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker, image_of
from pentimento.domain.errors import Cancelled, FailedPrecondition, InvalidArgument, ResourceExhausted
from pentimento.domain.image_request import Accepted, Completed, ImageFailed, Routed
from pentimento.domain.jobs import RequestQuery, RequestState
from pentimento.stores.errors import StoreFull
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.journal.records import AcceptedRequest, AcceptOutcome


async def ended(suite: FrontdoorSuite, request_id: str) -> RequestState:
    """Return its terminal state."""
    while True:
        state = (await suite.client.get_request(request_id, omit_image=True)).state
        if state.terminal:
            return state
        await asyncio.sleep(0.01)


async def test_job_runs_without_client_and_its_key_finds_it(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    both = await asyncio.gather(*(suite.client.submit(REQUEST, "key") for _ in range(2)))
    request_id = both[0].request_id

    assert await ended(suite, request_id) is RequestState.COMPLETED
    completed = (await suite.client.get_request(request_id)).completed
    assert completed is not None
    assert completed.image == image_of(completed.provenance.spec)
    events = [event async for event in suite.client.attach(request_id)]
    assert [type(event) for event in events] == [Accepted, Routed, Completed]
    assert sorted(one.replayed for one in both) == [False, True]
    assert await suite.client.submit(REQUEST, "key") == Accepted(request_id, replayed=True)
    assert {one.request_id for one in both} == {request_id} and len(worker.executed) == 1
    first = await suite.client.submit(REQUEST, "other key")
    assert await suite.client.submit(REQUEST, "other key") == Accepted(first.request_id, replayed=True)
    for other in (suite.client.submit(replace(REQUEST, seed=2), "key"), anext(suite.client.generate(REQUEST, "key"))):
        with pytest.raises(FailedPrecondition) as caught:
            await other
        assert caught.value.reason == "IDEMPOTENCY_KEY_REUSED"


async def test_attached_client_receives_events_and_leaving_cancels_nothing(
    suite: FrontdoorSuite, worker: PacedWorker
) -> None:
    worker.hold.clear()
    request_id = (await suite.client.submit(REQUEST)).request_id
    await worker.wait_until(lambda: worker.running)

    leaving = suite.client.attach(request_id)
    assert await anext(leaving) == Accepted(request_id, replayed=True)
    assert isinstance(await anext(leaving), Routed)
    await leaving.aclose()
    staying = suite.client.attach(request_id)
    await anext(staying)
    worker.hold.set()
    events = [event async for event in staying]

    assert [type(event) for event in (events[0], events[-1])] == [Routed, Completed]
    assert (await suite.client.get_request(request_id)).state is RequestState.COMPLETED
    assert len(worker.executed) == 1


async def test_cancelled_job_is_reported_to_every_caller(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    request_id = (await suite.client.submit(REQUEST)).request_id
    await worker.wait_until(lambda: worker.running)

    assert await suite.client.cancel(request_id) is RequestState.CANCELLED
    stream = suite.client.attach(request_id)
    assert await anext(stream) == Accepted(request_id, replayed=True)
    with pytest.raises(Cancelled):
        await anext(stream)


async def test_request_ends_when_last_attached_listener_leaves(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    """A request of Generate keeps its rule."""
    worker.hold.clear()
    first = suite.client.generate(REQUEST)
    request_id = await suite.accepted(first)
    await worker.wait_until(lambda: worker.running)
    second = suite.client.attach(request_id)
    await anext(second)

    await first.aclose()
    await anext(second)
    still = (await suite.client.get_request(request_id)).state
    await second.aclose()

    assert still is RequestState.RUNNING
    assert await ended(suite, request_id) is RequestState.CANCELLED


async def test_invalid_job_is_refused_and_leaves_nothing(suite: FrontdoorSuite) -> None:
    with pytest.raises(InvalidArgument, match="num_inference_steps"):
        await suite.client.submit(replace(REQUEST, num_inference_steps=0))
    with pytest.raises(FailedPrecondition) as caught:
        await suite.client.submit(REQUEST, webhook_url="https://hooks.example.com/")

    assert caught.value.reason == "WEBHOOKS_OFF"
    assert (await suite.client.list_requests(RequestQuery())).requests == ()


async def test_list_wrong_page_size_is_refused_by_name(suite: FrontdoorSuite) -> None:
    for page_size in (-1, 201):
        with pytest.raises(InvalidArgument, match="page_size"):
            await suite.client.list_requests(RequestQuery(page_size=page_size))


async def test_a_full_queue_refuses_a_job(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder, queue_limit=0) as suite:
        with pytest.raises(ResourceExhausted) as caught:
            await suite.client.submit(REQUEST)
        listed = (await suite.client.list_requests(RequestQuery())).requests

    assert (caught.value.reason, listed) == ("QUEUE_FULL", ())
    assert (caught.value.retry_after_ms or 0) > 0


async def test_jobs_have_a_longer_deadline_than_requests_whose_clients_wait(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder, default_deadline_s=60.0, max_deadline_s=1800.0) as suite:
        await suite.client.submit(REQUEST)
        await suite.client.submit(replace(REQUEST, deadline_ms=30_000))
        await suite.paint()
        listed = (await suite.client.list_requests(RequestQuery())).requests

    times_s = [round((one.deadline_at_ms - one.accepted_at_ms) / 1000) for one in listed]
    assert times_s == [60, 30, 1800]


async def test_lists_tell_states_and_pages(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    done = (await suite.client.submit(REQUEST, "mine")).request_id
    await ended(suite, done)
    generated = (await suite.paint()).request_id
    worker.hold.clear()
    running = (await suite.client.submit(REQUEST)).request_id
    await worker.wait_until(lambda: worker.running)

    first = await suite.client.list_requests(RequestQuery(page_size=2))
    second = await suite.client.list_requests(RequestQuery(page_size=2, page_token=first.next_page_token))
    jobs = await suite.client.list_requests(RequestQuery(jobs_only=True))
    finished = await suite.client.list_requests(RequestQuery(frozenset({RequestState.COMPLETED})))
    under_way = await suite.client.list_requests(RequestQuery(frozenset({RequestState.RUNNING})))

    assert [one.request_id for one in (*first.requests, *second.requests)] == [running, generated, done]
    assert second.next_page_token == ""
    assert [one.request_id for one in jobs.requests] == [running, done]
    assert [one.request_id for one in finished.requests] == [generated, done]
    assert [(one.request_id, one.finished_at_ms) for one in under_way.requests] == [(running, None)]
    oldest = second.requests[-1]
    assert (oldest.job, oldest.idempotency_key, oldest.width_px) == (True, "mine", 32)
    assert oldest.finished_at_ms is not None
    assert oldest.kept_until_ms == oldest.finished_at_ms + 24 * 3_600_000


async def test_attached_clients_are_limited(folder: Path, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with running_suite(folder) as suite:
        request_id = (await suite.client.submit(REQUEST)).request_id
        streams = [suite.client.attach(request_id) for _ in range(4)]
        for stream in streams:
            await anext(stream)

        with pytest.raises(ResourceExhausted) as caught:
            await anext(suite.client.attach(request_id))
        assert caught.value.reason == "TOO_MANY_LISTENERS"
        for stream in streams:
            await stream.aclose()


async def test_queued_and_running_jobs_end_after_restart(folder: Path, worker: PacedWorker) -> None:
    """The frontdoor ends as after SIGKILL; no client listens afterwards, except one that attaches and leaves."""
    worker.hold.clear()
    async with running_suite(folder) as suite:
        submitted = [(await suite.client.submit(REQUEST, f"k{n}")).request_id for n in range(worker.credit_count + 2)]
        await worker.wait_until(lambda: len(worker.running) == worker.credit_count)

    async with running_suite(folder) as suite:
        stream = suite.client.attach(submitted[0])
        await anext(stream)
        await stream.aclose()
        again = await suite.client.submit(REQUEST, "k1")
        worker.hold.set()
        states = [await ended(suite, request_id) for request_id in submitted]
        listed = (await suite.client.list_requests(RequestQuery(jobs_only=True))).requests

    assert states == [RequestState.COMPLETED] * len(submitted)
    assert again == Accepted(submitted[1], replayed=True)
    assert {one.request_id for one in listed} == set(submitted)
    assert len(worker.executed) == len(submitted)


async def test_several_images_are_one_job_and_each_is_listed(suite: FrontdoorSuite) -> None:
    accepted = await suite.client.submit(replace(REQUEST, image_count=2), "key")
    ids = accepted.image_request_ids
    for request_id in ids:
        assert await ended(suite, request_id) is RequestState.COMPLETED
    together = await suite.client.get_request(accepted.request_id)
    heard = [event async for event in suite.client.attach(accepted.request_id)]
    listed = (await suite.client.list_requests(RequestQuery(jobs_only=True))).requests

    assert together.state is RequestState.COMPLETED
    assert [one.completed.image_index for one in together.images if one.completed is not None] == [0, 1]
    assert together.summary is not None
    assert (together.summary.request_id, together.summary.job) == (accepted.request_id, True)
    assert together.summary.finished_at_ms == max(one.finished_at_ms or 0 for one in listed)
    assert sorted(event.request_id for event in heard if isinstance(event, Completed)) == sorted(ids)
    assert {one.request_id for one in listed} == set(ids)
    assert {(one.group_id, one.idempotency_key) for one in listed} == {(accepted.request_id, "key")}
    assert (together.summary.group_id, together.summary.idempotency_key) == ("", "key")
    assert await suite.client.submit(replace(REQUEST, image_count=2), "key") == replace(accepted, replayed=True)


def refuse(journal: Journal, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the journal refuse requests with that ending of their id."""
    accept = journal.accept

    def refuse_one(record: AcceptedRequest, *rest: Any) -> "Future[AcceptOutcome]":
        if not record.request_id.endswith(ending):
            return accept(record, *rest)
        refused: Future[AcceptOutcome] = Future()
        refused.set_exception(StoreFull("ledger", "full"))
        return refused

    monkeypatch.setattr(journal, "accept", refuse_one)


@pytest.mark.parametrize("missing", [0, 2])
async def test_job_with_unaccepted_image_is_found_by_listed_id(
    suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    refuse(suite.frontdoor.journal, f"-{missing}", monkeypatch)
    with pytest.raises(ResourceExhausted):
        await suite.client.submit(replace(REQUEST, image_count=3), "key")
    await until(lambda: len(suite.frontdoor.jobs) == 0)
    rejected = (await suite.operator.status()).rejections
    assert [(one.reason, one.request_count) for one in rejected] == [("STORE_FULL", 1)]
    listed = (await suite.client.list_requests(RequestQuery())).requests
    (group_id,) = {one.group_id for one in listed}

    together = await suite.client.get_request(group_id)
    heard = [event async for event in suite.client.attach(group_id)]
    cancelled = await suite.client.cancel(group_id)

    states = {index: one.state for index, one in enumerate(together.images)}
    done, none = RequestState.COMPLETED, RequestState.FAILED
    assert states == {index: none if index == missing else done for index in range(3)}
    assert together.images[missing].error_reason == "UNKNOWN_REQUEST"
    assert together.state is cancelled is RequestState.COMPLETED
    assert [(one.image_index, one.error.reason) for one in heard if isinstance(one, ImageFailed)] == [
        (missing, "UNKNOWN_REQUEST")
    ]
    assert {one.image_index for one in heard if isinstance(one, Completed)} == {0, 1, 2} - {missing}


async def test_cancel_of_partly_accepted_job_stops_accepted_images(
    suite: FrontdoorSuite, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.hold.clear()
    refuse(suite.frontdoor.journal, "-0", monkeypatch)
    with pytest.raises(ResourceExhausted):
        await suite.client.submit(replace(REQUEST, image_count=2), "key")
    # The other image may be accepted only after this refusal was sent.
    while not (listed := (await suite.client.list_requests(RequestQuery())).requests):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    (left,) = listed

    await suite.client.cancel(left.group_id)

    assert (await suite.client.get_request(left.request_id)).state is RequestState.CANCELLED
    assert (await suite.client.get_request(left.group_id)).state is RequestState.CANCELLED
    worker.hold.set()


@pytest.mark.parametrize(("key", "left"), [("", 0), ("key", 2)], ids=["no key finds them", "a retry joins them"])
async def test_partly_refused_job_continues_only_with_a_key(
    suite: FrontdoorSuite, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch, key: str, left: int
) -> None:
    worker.hold.clear()
    journal = suite.frontdoor.journal
    refuse(journal, "-2", monkeypatch)

    with pytest.raises(ResourceExhausted):
        await suite.client.submit(replace(REQUEST, image_count=3), key)

    await until(lambda: len(suite.frontdoor.jobs) == left)
    assert len(await asyncio.wrap_future(journal.unfinished())) == left
    worker.hold.set()


async def test_job_with_key_taken_meanwhile_leaves_no_request(
    suite: FrontdoorSuite, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first image has the call's own key, and no key finds the others. The lookup of the key finds no request
    yet."""
    worker.hold.clear()
    journal, nobody = suite.frontdoor.journal, Future[None]()
    nobody.set_result(None)
    await suite.client.submit(REQUEST, "key")
    monkeypatch.setattr(journal, "find_key", lambda *key: nobody)

    with pytest.raises(FailedPrecondition):
        await suite.client.submit(replace(REQUEST, image_count=3), "key")

    await until(lambda: len(suite.frontdoor.jobs) == 1)
    assert len(await asyncio.wrap_future(journal.unfinished())) == 1
    worker.hold.set()
