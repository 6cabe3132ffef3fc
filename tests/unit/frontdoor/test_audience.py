import pytest

from pentimento.domain.errors import Unavailable
from pentimento.domain.generation import FromNoise, Route
from pentimento.domain.image_request import Accepted, GenerateEvent, Progress, Routed
from services.frontdoor.answers.audience import MAX_PENDING_PROGRESS, Audience, Listener

ROUTE = Route("route", FromNoise(), "tiny", "sha256:model")


async def heard(listener: Listener) -> list[GenerateEvent]:
    return [event async for event in listener.events()]


async def test_everybody_hears_what_is_told() -> None:
    audience = Audience("r1")
    listeners = [audience.join(), audience.join()]

    audience.accepted()
    audience.routed(ROUTE)
    audience.end()

    assert [await heard(listener) for listener in listeners] == [[Accepted("r1"), Routed(ROUTE)]] * 2


async def test_a_slow_reader_misses_old_progress_and_nothing_else() -> None:
    audience = Audience("r1")
    listener = audience.join()
    audience.accepted()

    for step in range(100):
        audience.tell(Progress(step, 100))
    audience.end()

    accepted, *progress = await heard(listener)
    assert accepted == Accepted("r1")
    assert progress == [Progress(step, 100) for step in range(100 - MAX_PENDING_PROGRESS, 100)]


async def test_an_error_is_raised_after_what_came_before_it() -> None:
    audience = Audience("r1")
    listener = audience.join()
    audience.accepted()
    audience.end(Unavailable("WORKER_LOST", "gone"))

    stream = listener.events()
    assert await anext(stream) == Accepted("r1")
    with pytest.raises(Unavailable):
        await anext(stream)


async def test_a_listener_that_is_handed_over_hears_of_the_earlier_request() -> None:
    earlier, later = Audience("r1"), Audience("r2")
    earlier.routed(ROUTE)
    listener = later.join()

    earlier.move_here(listener)
    earlier.end()

    assert await heard(listener) == [Accepted("r1", replayed=True), Routed(ROUTE)]
    assert not later.listeners


async def test_who_waits_for_the_end_alone_hears_of_progress_what_has_a_preview() -> None:
    audience = Audience("r1")
    all_of_it, seldom = audience.join(), audience.join(hears_progress=False)

    audience.routed(ROUTE)
    audience.tell(Progress(1, 3))
    woken = seldom.news.is_set()
    audience.tell(Progress(2, 3, b"preview"))
    audience.end()

    assert not woken
    assert await heard(all_of_it) == [Routed(ROUTE), Progress(1, 3), Progress(2, 3, b"preview")]
    assert await heard(seldom) == [Progress(2, 3, b"preview")]


async def test_what_a_late_listener_is_told_first_is_left_out_too_for_who_waits_for_the_end_alone() -> None:
    audience = Audience("r1", ROUTE)
    late = audience.join_late(hears_progress=False)

    audience.end()

    assert await heard(late) == [Accepted("r1", replayed=True)]


def test_progress_is_waited_for_while_one_listener_does() -> None:
    audience = Audience("r1")
    all_of_it = audience.join()
    audience.join(hears_progress=False)

    both = audience.hears_progress()
    all_of_it.leave()

    assert both
    assert not audience.hears_progress()
