"""Test a frontdoor that ends without a drain, as after SIGKILL, and the next one over the same journal."""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker, image_of
from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.domain.clock import SystemClock
from pentimento.domain.errors import Internal
from pentimento.domain.fleet import Plan, WorkerAssignment
from pentimento.domain.generation import GenerationSpec, PlanVersion, Scheduler
from pentimento.domain.image_request import Accepted, CacheMode, Completed, ImageFormat, ResolvedRequest
from pentimento.domain.jobs import RequestState
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.journal.records import AcceptedRequest
from pentimento.wire.codec import to_bytes
from services.frontdoor.journal.recovery import JOURNALLED_REQUEST, resolved_to_bytes


async def start_and_break(folder: Path, worker: PacedWorker) -> str:
    """Return the id of a request that was running when its frontdoor ended."""
    worker.hold.clear()
    async with running_suite(folder) as suite:
        stream = suite.client.generate(REQUEST, "key")
        request_id = await suite.accepted(stream)
        await worker.wait_until(lambda: worker.running)
    return request_id


async def finished(suite: FrontdoorSuite, request_id: str) -> Completed:
    """Query the image until it exists."""
    while True:
        status = await suite.client.get_request(request_id)
        if status.state.terminal:
            assert status.completed is not None, status
            return status.completed
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("finishes_before", "clock_step_s"),
    [(False, 0.0), (False, 3600.0), (False, -3600.0), (True, 0.0)],
    ids=["runs on", "clock is ahead", "clock is behind", "finished meanwhile"],
)
async def test_restart_takes_over_attempt_without_second_run(
    folder: Path, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch, finishes_before: bool, clock_step_s: float
) -> None:
    request_id = await start_and_break(folder, worker)
    monkeypatch.setattr(SystemClock, "wall", lambda _: time.time() + clock_step_s)
    if finishes_before:
        worker.hold.set()
        await worker.wait_until(lambda: not worker.running)

    async with running_suite(folder) as suite:
        worker.hold.set()
        completed = await finished(suite, request_id)

    assert completed.image == image_of(completed.provenance.spec)
    assert len(worker.executed) == 1


async def test_lost_attempt_runs_again_on_same_route(folder: Path, worker: PacedWorker) -> None:
    request_id = await start_and_break(folder, worker)
    worker.running.clear()
    worker.hold.set()

    async with running_suite(folder) as suite:
        completed = await finished(suite, request_id)

    first, second = worker.orders
    assert completed.provenance.attempt_number == 2
    assert second.attempt.fencing_token > first.attempt.fencing_token
    assert second.route == first.route
    assert "recovered by a newer frontdoor" in completed.provenance.notes


async def test_recovered_request_survives_one_leaving_client(folder: Path, worker: PacedWorker) -> None:
    """After a client listens again, the last one that leaves cancels the request, as always."""
    request_id = await start_and_break(folder, worker)

    async with running_suite(folder) as suite:
        stream = suite.client.generate(REQUEST, "key")
        assert await anext(stream) == Accepted(request_id, replayed=True)
        await stream.aclose()

        assert await suite.client.cancel(request_id) is RequestState.CANCELLED


async def test_unreadable_request_ends_as_internal_without_run(folder: Path, worker: PacedWorker) -> None:
    await start_and_break(folder, worker)
    with closing(sqlite3.connect(folder / "journal.sqlite")) as database, database:
        ((body,),) = database.execute("SELECT body FROM journal_requests")
        database.execute("UPDATE journal_requests SET body = ?", (body + b"\x98\x06\x01",))
    worker.executed.clear()
    worker.running.clear()

    async with running_suite(folder) as suite:
        with pytest.raises(Internal) as caught:
            await suite.paint(idempotency_key="key")

    assert caught.value.reason == "UNREADABLE_REQUEST"
    assert not worker.executed


async def test_request_that_ends_without_worker_is_not_awaited(folder: Path) -> None:
    """Otherwise every stop would wait for it, as for running work."""
    spec = GenerationSpec("a red circle", "", "tiny", 32, 32, 3, 3.0, Scheduler.DDIM, 7)
    body = resolved_to_bytes(ResolvedRequest(spec, CacheMode.OFF, ImageFormat.PNG, None, 60_000))
    with closing(open_journal(f"sqlite:///{folder / 'journal.sqlite'}")) as journal:
        accepted = AcceptedRequest("r1", "default", body, "", time.time(), body_format=JOURNALLED_REQUEST)
        journal.accept(accepted).result()

    async with running_suite(folder, worker_addresses=(), worker_wait_s=0.01) as suite:
        ended = await suite.client.cancel("r1")
        async with asyncio.timeout(60.0):
            await suite.frontdoor.jobs.finish_tasks()

    assert ended is RequestState.CANCELLED


async def test_epochs_grow_from_start_to_start(folder: Path, worker: PacedWorker) -> None:
    epochs = []
    for _ in range(3):
        async with running_suite(folder) as suite:
            epochs.append((await suite.operator.status()).frontdoor_epoch)

    assert epochs == sorted(set(epochs))


async def test_last_plan_applies_without_controller(folder: Path, worker: PacedWorker) -> None:
    journal = open_journal(f"sqlite:///{folder / 'journal.sqlite'}")
    plan = Plan(PlanVersion(7, 3), (WorkerAssignment("w1", f"unix:{folder / 'w1'}", "tiny", 1),))
    journal.save_plan(to_bytes(plan, controller_pb.Plan)).result()
    journal.close()

    async with running_suite(folder, worker_addresses=()) as suite:
        completed = await suite.paint()

    assert completed.provenance.route.plan_version == PlanVersion(7, 3)
