"""Test pins: their limits, and what stays stored. Tests with the real worker check the replay of a pinned request."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.clock import SystemClock
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from pentimento.domain.generation import InitImage
from pentimento.domain.image_request import Completed, ImageRequest, ReplayRequest
from pentimento.domain.jobs import RequestState
from services.frontdoor.requests.pins import ROW_BYTES
from tests.integration.frontdoor.inputs import png
from tests.support.calls import last_completed

HOUR_MS = 3_600_000
IMAGE = png()
WITH_IMAGE = ImageRequest("a red circle", num_inference_steps=4, seed=1, init_image=InitImage(IMAGE, 0.5))


def stored_inputs(folder: Path) -> list[Path]:
    return list((folder / "objects").rglob("inputs.*"))


async def replay(suite: FrontdoorSuite, request_id: str) -> Completed:
    return await last_completed(suite.client.replay(ReplayRequest(request_id)))


async def sweep(suite: FrontdoorSuite) -> None:
    """Sweep often enough to delete an object without references: two sweeps do."""
    for _ in range(3):
        await suite.frontdoor.retention.sweep()


async def test_a_pinned_request_outlives_its_retention(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder) as suite:
        first, second = await suite.paint(), await suite.paint()
        pinned = await suite.client.pin(first.request_id, HOUR_MS)
        assert (pinned.request_id, pinned.size_bytes, pinned.inputs_kept) == (first.request_id, ROW_BYTES, True)

    # The frontdoor is killed, and restarted without retention.
    async with running_suite(folder, result_retention_h=0.0) as suite:
        while True:
            try:
                await suite.client.get_request(second.request_id)
            except NotFound:
                break
            await asyncio.sleep(0.01)

        assert (await replay(suite, first.request_id)).image == first.image
        await suite.client.unpin(first.request_id)
        await suite.client.unpin(first.request_id)
        assert await asyncio.wrap_future(suite.frontdoor.journal.forget_finished(1e12, 10))


@pytest.mark.parametrize("retention_h", [24.0, 0.0], ids=["kept", "pinned"])
async def test_corrected_clock_jump_deletes_nothing(
    folder: Path, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch, retention_h: float
) -> None:
    ahead_s = 0.0
    monkeypatch.setattr(SystemClock, "wall", lambda _: time.time() + ahead_s)
    async with running_suite(folder) as suite:
        generated = await suite.paint()
        await suite.client.pin(generated.request_id, HOUR_MS)

    async with running_suite(folder, result_retention_h=retention_h) as suite:
        if retention_h:
            await suite.client.unpin(generated.request_id)
        ahead_s = 40 * 86_400.0
        await suite.frontdoor.retention._forget_old()
        ahead_s = 0.0

        assert (await suite.client.get_request(generated.request_id)).completed == generated


async def test_inputs_of_pinned_request_stay_for_replay(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder) as suite:
        first = await suite.paint(replace(WITH_IMAGE, pin_ms=HOUR_MS))
        await suite.frontdoor.jobs.finish_tasks()
        assert not [note for note in first.provenance.notes if "pinned" in note]
        await sweep(suite)
        assert len(stored_inputs(folder)) == 1

    async with running_suite(folder) as suite:
        again = await replay(suite, first.request_id)
        assert again.image == first.image and worker.executed[1] == worker.executed[0]
        await until(lambda: len(stored_inputs(folder)) == 1)
        # It is counted and stays stored.
        pinned = await suite.client.pin(first.request_id, 2 * HOUR_MS)
        assert pinned.inputs_kept and pinned.size_bytes == len(IMAGE) + ROW_BYTES

        await suite.client.unpin(first.request_id)
        await sweep(suite)

        assert not stored_inputs(folder)
        with pytest.raises(InvalidArgument):
            await replay(suite, first.request_id)
        assert not (await suite.client.pin(first.request_id, HOUR_MS)).inputs_kept


async def test_an_image_that_an_unpinned_request_shares_stays(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    pinned = suite.client.generate(replace(WITH_IMAGE, pin_ms=HOUR_MS))
    await suite.accepted(pinned)
    other = suite.client.generate(WITH_IMAGE)
    await suite.accepted(other)
    worker.hold.set()

    for stream in (pinned, other):
        _ = [event async for event in stream]
    await suite.frontdoor.jobs.finish_tasks()

    assert len(stored_inputs(suite.folder)) == 1


async def test_wrong_times_are_refused_by_name(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    first = await suite.paint()

    for duration_ms in (0, -1, 90 * 24 * HOUR_MS + 1):
        with pytest.raises(InvalidArgument, match="duration_ms: must be between 1 and 7776000000"):
            await suite.client.pin(first.request_id, duration_ms)
        with pytest.raises(InvalidArgument, match="pin_ms: must be between 1 and 7776000000"):
            await suite.paint(replace(REQUEST, pin_ms=duration_ms))
    assert len(worker.executed) == 1


async def test_request_without_image_is_not_pinned(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    stream = suite.client.generate(replace(WITH_IMAGE, pin_ms=HOUR_MS))
    request_id = await suite.accepted(stream)
    with pytest.raises(FailedPrecondition) as refused:
        await suite.client.pin(request_id, HOUR_MS)
    assert refused.value.reason == "NOT_COMPLETED"

    assert await suite.client.cancel(request_id) is RequestState.CANCELLED

    await suite.frontdoor.jobs.finish_tasks()
    assert await asyncio.wrap_future(suite.frontdoor.journal.pins.pinned_bytes("default")) == 0
    await until(lambda: not stored_inputs(suite.folder))


async def test_tenant_over_pin_quota_still_gets_images(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder, tenant_input_bytes=2 * ROW_BYTES) as suite:
        generated = [await suite.paint() for _ in range(3)]
        for one in generated[:2]:
            await suite.client.pin(one.request_id, HOUR_MS)

        with pytest.raises(ResourceExhausted) as refused:
            await suite.client.pin(generated[2].request_id, HOUR_MS)
        assert refused.value.metadata["quota"] == "tenant-input-bytes"
        with pytest.raises(ResourceExhausted) as early:
            await suite.paint(replace(REQUEST, pin_ms=HOUR_MS))
        assert early.value.reason == "QUOTA_EXCEEDED" and len(worker.executed) == 3

        # Two pins exceed a limit that had room for one.
        await suite.client.unpin(generated[0].request_id)
        worker.hold.clear()
        streams = [suite.client.generate(replace(REQUEST, pin_ms=HOUR_MS)) for _ in range(2)]
        for stream in streams:
            await suite.accepted(stream)
        worker.hold.set()
        last = [[event async for event in stream][-1] for stream in streams]
        notes = sorted(note for one in last if isinstance(one, Completed) for note in one.provenance.notes)
        assert notes == ["not pinned: QUOTA_EXCEEDED"]
