import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import Unavailable
from pentimento.domain.generation import FromNoise, Route
from pentimento.domain.image_request import Accepted, GenerateEvent, Progress, Routed
from services.frontdoor.answers.audience import MAX_PENDING_PROGRESS, Audience, Listener, SeveralImages

ROUTE = Route("route", FromNoise(), "tiny", "sha256:model")


async def heard(listener: Listener) -> list[GenerateEvent]:
    return [event async for event in listener.events()]


async def test_all_listeners_receive_events() -> None:
    audience = Audience("r1")
    listeners = [audience.join(), audience.join()]

    audience.accepted()
    audience.routed(ROUTE)
    audience.end()

    assert [await heard(listener) for listener in listeners] == [[Accepted("r1"), Routed(ROUTE)]] * 2


async def test_a_slow_reader_misses_old_progress_and_nothing_else() -> None:
    clock = SetClock()
    audience = Audience("r1", clock=clock)
    listener = audience.join()
    audience.accepted()

    for step in range(100):
        audience.tell(Progress(step, 100))
        clock.monotonic_s += 0.1
    audience.end()

    accepted, *progress = await heard(listener)
    assert accepted == Accepted("r1")
    assert progress == [Progress(step, 100) for step in range(100 - MAX_PENDING_PROGRESS, 100)]


PREVIEW = b"preview"


@pytest.mark.parametrize(
    ("told_at_s", "heard_steps"),
    [
        # Ten of thirty in a second are sent, and the last.
        ({step: step / 32 for step in range(32)}, [0, 4, 8, 12, 16, 20, 24, 28, 31]),
        ({0: 0.0, 1: 0.125, 2: 0.25}, [0, 1, 2]),
        ({0: 0.0, 1: 0.01}, [0, 1]),
        # Each preview is sent; later progress within the interval waits, and replaced progress is dropped.
        ({0: 0.0, 1: 0.03, 5: 0.06, 6: 0.07, 10: 0.08, 11: 0.09}, [0, 5, 10, 11]),
    ],
)
async def test_progress_is_sent_ten_times_a_second_with_last(
    told_at_s: dict[int, float], heard_steps: list[int]
) -> None:
    clock = SetClock()
    audience = Audience("r1", clock=clock)
    listener = audience.join()

    for step, at_s in told_at_s.items():
        clock.monotonic_s = at_s
        audience.tell(Progress(step, 32, PREVIEW if step in (5, 10) and len(told_at_s) == 6 else b""))
    audience.end()

    assert [event.step for event in await heard(listener) if isinstance(event, Progress)] == heard_steps


async def test_images_of_one_call_share_its_ten_messages_a_second() -> None:
    clock = SetClock()
    audiences = [Audience(f"p2-{'0' * 32}-{index}", clock=clock) for index in range(2)]
    several = SeveralImages([audience.join() for audience in audiences])

    for step in range(32):
        clock.monotonic_s = step / 16
        for audience in audiences:
            audience.tell(Progress(step, 33))
    told = [len(list(listener.take())) for listener in several._listeners]

    # Every fourth step of both: each has one in 0.2 s, and the steps come every 0.0625 s.
    assert told == [8, 8]


async def test_error_is_raised_after_earlier_events() -> None:
    audience = Audience("r1")
    listener = audience.join()
    audience.accepted()
    audience.end(Unavailable("WORKER_LOST", "gone"))

    stream = listener.events()
    assert await anext(stream) == Accepted("r1")
    with pytest.raises(Unavailable):
        await anext(stream)


async def test_moved_listener_receives_earlier_request() -> None:
    earlier, later = Audience("r1"), Audience("r2")
    earlier.routed(ROUTE)
    listener = later.join()

    earlier.move_here(listener)
    earlier.end()

    assert await heard(listener) == [Accepted("r1", replayed=True), Routed(ROUTE)]
    assert not later.listeners


async def test_listener_without_progress_receives_previews() -> None:
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


async def test_late_listener_without_progress_skips_first_events() -> None:
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
