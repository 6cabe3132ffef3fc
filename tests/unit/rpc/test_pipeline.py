"""Parts of a call's way that need no wire."""

import asyncio
from types import SimpleNamespace

import pytest

from pentimento.rpc import context
from pentimento.rpc.pipeline import Call, Pipeline, ServerLimits, cancellation_code, finished, host_of
from pentimento.rpc.tokens import OpenDoor


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:1.2.3.4:5", "ipv4:1.2.3.4"),
        ("ipv6:[::1]:80", "ipv6:[::1]"),
        ("unix:", "unix"),
        ("unix:/run/s.sock", "unix"),
    ],
)
def test_a_peer_is_counted_by_its_host(peer: str, host: str) -> None:
    assert host_of(peer) == host


@pytest.mark.parametrize(
    ("remaining_s", "code"), [(None, "CANCELLED"), (0.0, "DEADLINE_EXCEEDED"), (3.0, "CANCELLED"), (1.0, "CANCELLED")]
)
def test_a_cancelled_call_ended_by_its_deadline_or_its_caller(
    remaining_s: float | None, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "remaining_s", lambda: remaining_s)

    assert cancellation_code() == code


async def test_who_waits_for_tasks_waits_until_they_end_or_the_time_is_up() -> None:
    release = asyncio.Event()
    task = asyncio.create_task(release.wait())

    await finished({task}, 0.01)
    early = task.done()
    await finished({task}, 0.0)
    asyncio.get_running_loop().call_later(0.01, release.set)
    await finished({task}, 60.0)

    assert (early, task.done()) == (False, True)
    await finished(set(), 60.0)


async def test_a_call_gives_back_what_it_holds_and_is_counted_once_it_ends() -> None:
    told: list[object] = []
    meter = SimpleNamespace(begin=lambda: told.append("begin"), end=lambda code, seconds: told.append((code, seconds)))
    method = SimpleNamespace(meter=meter, running=set())
    call = Call(method)  # type: ignore[arg-type]
    running = set(method.running)
    call.key = "acme"
    for word in ("first", "second"):
        call.holds(lambda key, word=word: told.append((word, key)))

    call.end()

    *before, (code, seconds) = told
    assert (before, code) == (["begin", ("first", "acme"), ("second", "acme")], "OK")
    assert 0 <= seconds < 3600
    assert (running, method.running) == ({asyncio.current_task()}, set())


async def test_what_still_runs_when_the_time_is_up_is_cancelled() -> None:
    pipeline = Pipeline(OpenDoor(), ServerLimits(8, 1.0, 1024, 4096, 1.0, 10.0))
    running = [asyncio.create_task(asyncio.Event().wait()) for _ in range(3)]
    for kept, task in zip((pipeline._unary, pipeline._streams, pipeline._exempt), running, strict=True):
        kept.add(task)

    await pipeline.close(0.0, 0.0)

    assert [task.cancelled() for task in running] == [True] * 3


async def test_a_stop_begins_with_the_calls_that_wait_until_none_comes_any_more() -> None:
    pipeline = Pipeline(OpenDoor(), ServerLimits(8, 1.0, 1024, 4096, 1.0, 10.0))

    async def come() -> None:
        for _ in range(5):
            pipeline._begun_count += 1
            await asyncio.sleep(0)

    coming = asyncio.create_task(come())
    await pipeline.refuse_waiting(0.0, 60.0)
    taken = pipeline._begun_count
    await coming

    assert taken == 5


async def test_calls_that_never_end_to_come_hold_no_stop_up() -> None:
    pipeline = Pipeline(OpenDoor(), ServerLimits(8, 1.0, 1024, 4096, 1.0, 10.0))

    async def come() -> None:
        while True:
            pipeline._begun_count += 1
            await asyncio.sleep(0)

    coming = asyncio.create_task(come())
    await pipeline.refuse_waiting(0.0, 0.05)
    coming.cancel()

    assert pipeline._begun_count > 0
