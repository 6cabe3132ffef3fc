"""The life of attempts apart from the model: streams that break, cancels that overtake, tokens that fence."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from pentimento.domain.errors import (
    Aborted,
    Cancelled,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.execution import AttemptResult, ExecuteEvent, Started, StepProgress
from pentimento.domain.generation import CapturedEntries
from services.unet_worker.attempts.attempt_book import KEPT_RESULTS, AttemptBook
from services.unet_worker.attempts.order import AttemptOutcome, ExecuteOrder, MidwayThinning
from tests.unit.unet_worker.orders import ORDER, order_with


def outcome_of(order: ExecuteOrder) -> AttemptOutcome:
    attempt = order.attempt
    return AttemptOutcome(
        AttemptResult(attempt, b"png", 32, 32, "sha256:x", CapturedEntries(""), 8, 0, "sha256:model", 5)
    )


class Runner:
    """Run until the test sets `finish`."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.stopped: asyncio.Queue[str] = asyncio.Queue()
        self.error: Exception | None = None
        self.emit: Callable[[ExecuteEvent], None] = lambda event: None

    async def __call__(self, order: ExecuteOrder, emit: Callable[[ExecuteEvent], None]) -> AttemptOutcome:
        self.emit = emit
        emit(Started("worker", 0, 8))
        try:
            await self.finish.wait()
        except asyncio.CancelledError:
            self.stopped.put_nowait(f"{order.attempt.request_id}/{order.attempt.fencing_token}")
            raise
        if self.error is not None:
            raise self.error
        return outcome_of(order)


def make_book(runner: Runner, capacity: int = 2, orphan_s: float = 60.0) -> AttemptBook:
    return AttemptBook(runner, lambda frontdoor: capacity, orphan_s, changed=lambda: None)


async def read_all(events: AsyncGenerator[Any, None]) -> list[Any]:
    return [event async for event in events]


async def started(book: AttemptBook, order: ExecuteOrder = ORDER) -> AsyncGenerator[Any, None]:
    """Return the attempt's stream after its Started event."""
    events = book.execute(order)
    assert isinstance(await anext(events), Started)
    return events


async def test_stream_sends_start_progress_and_outcome() -> None:
    runner = Runner()
    events = await started(make_book(runner))
    runner.emit(StepProgress(4, 8))

    progress = await anext(events)
    runner.finish.set()

    assert progress == StepProgress(4, 8)
    assert await read_all(events) == [outcome_of(ORDER)]


@pytest.mark.parametrize(("steps", "newest"), [(range(1, 8), 7), ((5, 3), 5)], ids=["a backlog", "late progress"])
async def test_slow_reader_gets_newest_progress(steps: Sequence[int], newest: int) -> None:
    runner = Runner()
    book = make_book(runner)
    events = await started(book)
    for step in steps:
        runner.emit(StepProgress(step, 8, b"preview" if step == 3 else b""))

    assert await anext(events) == StepProgress(newest, 8, b"preview")
    assert book.running()[0].describe().step == newest


async def test_runner_defect_is_internal_without_its_message() -> None:
    runner = Runner()
    events = await started(make_book(runner))
    runner.error = RuntimeError("a prompt")
    runner.finish.set()

    with pytest.raises(Internal) as failed:
        await read_all(events)
    assert "prompt" not in failed.value.message


async def test_attempt_survives_broken_stream_for_attach() -> None:
    runner = Runner()
    book = make_book(runner)
    await (await started(book)).aclose()
    assert book.running()[0].orphaned

    runner.finish.set()
    events = await read_all(book.attach("request", 10, "frontdoor", 4))

    assert events == [Started("worker", 0, 8), outcome_of(ORDER)]
    assert runner.stopped.empty()


async def test_finished_attempt_can_still_be_fetched() -> None:
    runner = Runner()
    book = make_book(runner)
    runner.finish.set()
    await read_all(book.execute(ORDER))

    assert (await read_all(book.attach("request", 10, "frontdoor", 3)))[-1] == outcome_of(ORDER)


async def test_unfetched_orphan_is_stopped_and_forgotten() -> None:
    runner = Runner()
    book = make_book(runner, orphan_s=0.0)
    await (await started(book)).aclose()

    assert await runner.stopped.get() == "request/10"

    with pytest.raises(NotFound):
        await read_all(book.attach("request", 10, "frontdoor", 3))


@pytest.mark.parametrize("frontdoor_id", ["frontdoor", "one of another name"])
async def test_older_epoch_may_not_attach(frontdoor_id: str) -> None:
    book = make_book(Runner())
    await started(book)

    with pytest.raises(Aborted):
        await read_all(book.attach("request", 10, frontdoor_id, 2))


async def test_newest_unfetched_results_are_kept() -> None:
    runner = Runner()
    runner.finish.set()
    book = make_book(runner)
    for number in range(KEPT_RESULTS + 2):
        await (await started(book, order_with(attempt={"request_id": f"r{number}"}))).aclose()
        if tasks := [held.task for held in book.running() if held.task is not None]:
            await asyncio.wait(tasks)

    for gone in ("r0", "r1"):
        with pytest.raises(NotFound):
            await read_all(book.attach(gone, 10, "frontdoor", 3))
    assert len(await read_all(book.attach("r2", 10, "frontdoor", 3))) == 2


async def test_newer_stream_takes_over_the_attempt() -> None:
    runner = Runner()
    book = make_book(runner)
    first = await started(book)
    waiting = asyncio.create_task(read_all(first))
    second = book.attach("request", 10, "frontdoor", 4)
    await anext(second)

    with pytest.raises(Aborted):
        await waiting
    runner.finish.set()
    assert await read_all(second) == [outcome_of(ORDER)]


async def test_cancel_stops_runner_and_is_no_failure() -> None:
    runner = Runner()
    book = make_book(runner)
    events = await started(book)

    assert book.cancel("request", 10)

    with pytest.raises(Cancelled):
        await read_all(events)
    assert await runner.stopped.get() == "request/10"
    runner.error = Internal("STEP_FAILED", "no")
    runner.finish.set()
    with pytest.raises(Internal):
        await read_all(book.execute(order_with(attempt={"request_id": "other"})))
    assert (book.completed_count, book.failed_count) == (0, 1)


async def test_cancel_before_execute_wins() -> None:
    runner = Runner()
    book = make_book(runner)

    assert not book.cancel("request", 10)

    with pytest.raises(Cancelled):
        await read_all(book.execute(ORDER))
    assert book.running() == []


async def test_newer_attempt_at_the_same_request_stops_the_older() -> None:
    runner = Runner()
    book = make_book(runner)
    older = await started(book)
    await started(book, order_with(attempt={"fencing_token": 11}))

    with pytest.raises(Aborted):
        await read_all(older)
    assert await runner.stopped.get() == "request/10"


@pytest.mark.parametrize(
    ("held", "epoch", "order", "error"),
    [
        (order_with(attempt={"fencing_token": 11}), 3, ORDER, Aborted),
        (ORDER, 3, order_with(attempt={"request_id": "other"}), ResourceExhausted),
        (order_with(attempt={"request_id": "other"}), 4, ORDER, Aborted),
    ],
    ids=["a newer attempt", "no credit", "a newer epoch"],
)
async def test_execute_refuses_order_behind(
    held: ExecuteOrder, epoch: int, order: ExecuteOrder, error: type[Exception]
) -> None:
    book = make_book(Runner(), capacity=2 if error is Aborted else 1)
    await started(book, held)
    book.meet_frontdoor("frontdoor", epoch)

    with pytest.raises(error):
        await read_all(book.execute(order))


async def test_repeated_attempt_continues_without_second_run() -> None:
    runner = Runner()
    book = make_book(runner)
    events = await started(book)

    with pytest.raises(FailedPrecondition):
        await read_all(book.execute(ORDER))
    runner.finish.set()

    assert await read_all(events) == [outcome_of(ORDER)]


async def test_draining_finishes_attempts_and_refuses_new_ones() -> None:
    runner = Runner()
    book = make_book(runner)
    reading = asyncio.create_task(read_all(await started(book)))
    draining = asyncio.create_task(book.drain())
    await asyncio.sleep(0)

    with pytest.raises(Unavailable):
        await read_all(book.execute(order_with(attempt={"request_id": "other"})))
    assert not draining.done()
    runner.finish.set()

    assert (await reading)[-1] == outcome_of(ORDER)
    await draining


async def test_thousands_of_cancels_leave_nothing_behind() -> None:
    runner = Runner()
    book = make_book(runner, orphan_s=0.0)
    for number in range(1000):
        order = order_with(attempt={"request_id": f"request {number}"})
        async with aclosing(await started(book, order)):
            assert book.cancel(f"request {number}", 10)
        await runner.stopped.get()

    assert book.running() == []
    assert len(book._held) <= KEPT_RESULTS + 1


async def test_draining_waits_for_unsent_result() -> None:
    runner = Runner()
    book = make_book(runner)
    stream = await started(book)
    runner.finish.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not book.running()

    draining = asyncio.create_task(book.drain())
    for _ in range(10):
        await asyncio.sleep(0)
    was_done = draining.done()

    assert (await read_all(stream))[-1] == outcome_of(ORDER)
    await draining
    assert not was_done


async def test_thin_reaches_the_listener_of_a_running_attempt() -> None:
    runner, heard = Runner(), list[tuple[int, ...]]()
    book, order = make_book(runner), replace(ORDER, asked_steps=MidwayThinning())
    stream = await started(book, order)

    assert book.thin("request", 10, (4, 6))
    order.asked_steps.listen(heard.append)
    assert book.thin("request", 10, (5, 7))
    assert heard == [(4, 6), (5, 7)]
    for steps in ((), (7, 4), (4, 8)):
        with pytest.raises(InvalidArgument):
            book.thin("request", 10, steps)
    assert not book.thin("request", 11, (4, 6))
    runner.finish.set()
    await read_all(stream)
    assert not book.thin("request", 10, (4, 6))
    assert heard == [(4, 6), (5, 7)]


async def test_neither_a_replay_nor_residuals_of_the_step_before_are_thinned() -> None:
    for number, change in enumerate(({"replay_of": "r-1"}, {"pipelined_from_step": 3})):
        runner = Runner()
        book = make_book(runner)
        order = replace(order_with(attempt={"request_id": f"r{number}"}), route=replace(ORDER.route, **change))
        stream = await started(book, order)

        with pytest.raises(InvalidArgument):
            book.thin(f"r{number}", 10, (4, 6))
        runner.finish.set()
        await read_all(stream)
