"""Test performers that raise: the request ends as INTERNAL, and its worker serves the next one."""

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.dataplane import effects
from pentimento.domain.errors import Cancelled, Internal
from pentimento.domain.jobs import RequestState
from services.frontdoor.objects.results import Results
from services.frontdoor.routing.prompts import PromptEmbedder
from services.frontdoor.routing.start_choice import StartChoice
from services.frontdoor.workers.attempts import AttemptStarter, AttemptStreams


def breaking_once(work: Callable[..., Any], error: type[BaseException] = ZeroDivisionError) -> Callable[..., Any]:
    """Fail the first call; all later ones do the work."""
    errors = [error("made to fail")]

    def call(*arguments: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return work(*arguments, **options)

    async def call_coroutine(*arguments: Any, **options: Any) -> Any:
        return await call(*arguments, **options)

    return call_coroutine if asyncio.iscoroutinefunction(work) else call


def break_performer(suite: FrontdoorSuite, kind: type) -> None:
    """Replace the performer of that kind by one that raises at the next effect."""
    interpreter = suite.frontdoor.interpreter
    interpreter.perform_with({**interpreter._performers, kind: breaking_once(interpreter._performers[kind])})


async def state_after_defect(suite: FrontdoorSuite) -> RequestState:
    """Submit a request that is accepted and ends in a defect; return its state in the journal."""
    stream = suite.client.generate(REQUEST)
    request_id = await suite.accepted(stream)
    with pytest.raises(Internal) as caught:
        async for _ in stream:
            pass
    assert caught.value.reason == "EFFECT_FAILED"
    status = await suite.client.get_request(request_id)
    assert status.error_reason == "EFFECT_FAILED"
    return status.state


@pytest.mark.parametrize("kind", [effects.ResolveRoute, effects.PersistAttempt, effects.Execute, effects.CommitResult])
async def test_raising_performer_ends_only_its_request(suite: FrontdoorSuite, kind: type) -> None:
    break_performer(suite, kind)

    assert await state_after_defect(suite) is RequestState.FAILED
    assert (await suite.paint()).provenance.worker_id == "w1"


@pytest.mark.parametrize(("where", "name"), [(StartChoice, "choose"), (AttemptStarter, "_start"), (Results, "store")])
@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_failed_or_cancelled_work_ends_only_its_request(
    suite: FrontdoorSuite,
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    name: str,
    error: type[BaseException],
) -> None:
    monkeypatch.setattr(where, name, breaking_once(getattr(where, name), error))

    assert await state_after_defect(suite) is RequestState.FAILED
    assert (await suite.paint()).provenance.worker_id == "w1"


async def test_abandoned_attempt_is_stopped_at_its_worker(
    suite: FrontdoorSuite, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.hold.clear()
    monkeypatch.setattr(AttemptStreams, "_pass_on", breaking_once(AttemptStreams._pass_on))

    await state_after_defect(suite)

    await worker.wait_until(lambda: not worker.running)


async def test_attempt_with_cancelled_stream_runs_again(suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttemptStreams, "_pass_on", breaking_once(AttemptStreams._pass_on, asyncio.CancelledError))

    assert (await suite.paint()).provenance.attempt_number == 2


async def test_request_with_failed_acceptance_gets_an_error(suite: FrontdoorSuite) -> None:
    break_performer(suite, effects.PersistAccepted)

    with pytest.raises(Internal):
        await suite.paint()

    assert (await suite.paint()).image


async def test_failed_delivery_returns_image_from_journal(suite: FrontdoorSuite) -> None:
    break_performer(suite, effects.Deliver)

    assert (await suite.paint()).image


async def test_failed_embedding_costs_no_image(suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PromptEmbedder, "embed", breaking_once(PromptEmbedder.embed))

    assert (await suite.paint()).image


async def test_failed_end_is_journalled_again(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    stream = suite.client.generate(REQUEST)
    request_id = await suite.accepted(stream)
    break_performer(suite, effects.PersistEnd)

    assert await suite.client.cancel(request_id) is RequestState.CANCELLED
    with pytest.raises(Cancelled):
        async for _ in stream:
            pass
    worker.hold.set()
    assert (await suite.paint()).image


async def test_a_recording_that_cannot_be_written_any_more_costs_no_request(
    suite: FrontdoorSuite, caplog: pytest.LogCaptureFixture
) -> None:
    """It grows with every event: in the end a disk is full."""

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    suite.frontdoor.interpreter.observer = full

    assert (await suite.paint()).image
    assert (await suite.paint()).image
    assert [record.message for record in caplog.records].count("recording of events stopped") == 1
