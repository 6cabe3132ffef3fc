"""Test input images: stored once in the object store until the last request that uses them has ended."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.clock import Backoff
from pentimento.domain.errors import FailedPrecondition, Internal, Unavailable
from pentimento.domain.generation import InitImage, ObjectReference, SpecInput
from pentimento.domain.image_request import GenerateEvent, ImageRequest
from pentimento.domain.jobs import RequestState
from pentimento.stores.objects import open_objects
from pentimento.stores.objects.store import digest_of
from services.frontdoor.objects import inputs
from services.frontdoor.objects.object_keeper import ObjectKeeper
from tests.integration.frontdoor.inputs import png, png_of_bytes, store_away
from tests.support.calls import last_completed

IMAGE = png()
REQUEST = ImageRequest("a red circle", num_inference_steps=4, seed=1, init_image=InitImage(IMAGE, 0.5))


def stored_inputs(folder: Path) -> list[Path]:
    return list((folder / "objects").rglob("inputs.*"))


async def test_image_reaches_worker_and_neither_journal_nor_provenance(
    suite: FrontdoorSuite, worker: PacedWorker
) -> None:
    worker.hold.clear()
    stream = suite.client.generate(REQUEST)
    await suite.accepted(stream)
    await worker.wait_until(lambda: worker.running)

    (record,) = await asyncio.wrap_future(suite.frontdoor.journal.unfinished())
    (job,) = suite.frontdoor.jobs
    worker.hold.set()
    completed = await last_completed(stream)

    assert worker.executed[0].init_image == InitImage(IMAGE, 0.5)
    assert IMAGE not in record.request.body
    assert job.request.resolved.spec.init_image == completed.provenance.spec.init_image == InitImage(b"", 0.5)
    parts = (SpecInput("init_image.image", ObjectReference("", digest_of(IMAGE), len(IMAGE))),)
    assert completed.provenance.inputs == parts


async def test_largest_inputs_reach_worker(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    """An attempt adds to its request: worker, start and grant."""
    most = 8 << 20
    image, mask = png_of_bytes(most), png_of_bytes(most - 200)

    await suite.paint(replace(REQUEST, init_image=InitImage(image, 0.5, mask), deadline_ms=20_000))

    assert worker.executed[0].init_image == InitImage(image, 0.5, mask)


async def test_shared_image_is_stored_once_until_last_request_ends(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    first, second = suite.client.generate(REQUEST), suite.client.generate(REQUEST)
    await suite.accepted(first)
    second_id = await suite.accepted(second)
    assert len(stored_inputs(suite.folder)) == 1

    await suite.client.cancel(second_id)
    assert len(stored_inputs(suite.folder)) == 1

    worker.hold.set()
    _ = [event async for event in first]
    await until(lambda: not stored_inputs(suite.folder))


async def test_tenants_never_share_inputs(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    api = suite.frontdoor.api
    streams = [api.generate(tenant, REQUEST) for tenant in ("a", "b")]
    for stream in streams:
        await anext(stream)

    assert len(stored_inputs(suite.folder)) == 2
    for stream in streams:
        await stream.aclose()


async def test_refused_or_replayed_request_leaves_no_input(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    await suite.paint(REQUEST, idempotency_key="key")
    await suite.paint(REQUEST, idempotency_key="key")

    with pytest.raises(FailedPrecondition):
        await suite.paint(replace(REQUEST, init_image=InitImage(png("blue"), 0.5)), idempotency_key="key")

    await until(lambda: not stored_inputs(suite.folder))


async def test_restarted_frontdoor_uses_input_and_deletes_it(folder: Path, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with running_suite(folder) as suite:
        running = suite.client.generate(REQUEST)
        await suite.accepted(running)
        await worker.wait_until(lambda: worker.running)
        queued = suite.client.generate(REQUEST)
        request_id = await suite.accepted(queued)

    worker.hold.set()
    async with running_suite(folder) as suite:
        await until(lambda: not len(suite.frontdoor.jobs))
        assert (await suite.client.get_request(request_id)).completed
        await until(lambda: not stored_inputs(folder))

    assert [spec.init_image for spec in worker.executed] == [InitImage(IMAGE, 0.5)] * 2


async def test_unused_inputs_are_swept_after_crash(folder: Path, worker: PacedWorker) -> None:
    worker.hold.clear()
    orphan = open_objects(f"file://{folder / 'objects'}").put("inputs/" + "0" * 32 + "/orphan", b"left by a crash")
    async with running_suite(folder, sweep_interval_s=0.02) as suite:
        stream = suite.client.generate(REQUEST)
        await suite.accepted(stream)
        await until(lambda: len(stored_inputs(folder)) == 1)
        for _ in range(3):
            await suite.frontdoor.retention.sweep()

        (left,) = stored_inputs(folder)
        worker.hold.set()
        assert [event async for event in stream]
    assert not left.name.endswith("orphan") and orphan.key.endswith("orphan")


def tries_to_read(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], object] = lambda number: None) -> list[str]:
    """Return the keys that the frontdoor reads from now on. `before` gets the number of each read."""
    asked, get = list[str](), ObjectKeeper.get

    async def seen(keeper: ObjectKeeper, reference: ObjectReference) -> bytes:
        asked.append(reference.key)
        before(len(asked))
        return await get(keeper, reference)

    monkeypatch.setattr(ObjectKeeper, "get", seen)
    return asked


async def keep_busy(suite: FrontdoorSuite, worker: PacedWorker) -> AsyncIterator[GenerateEvent]:
    """Return the stream of another request, which holds the worker's credit until `worker.hold` is set or the stream is
    dropped."""
    worker.hold.clear()
    stream = suite.client.generate(ImageRequest("x", num_inference_steps=1))
    await suite.accepted(stream)
    await worker.wait_until(lambda: worker.running)
    return stream


async def test_request_with_unreadable_image_yields_and_may_be_retried(
    suite: FrontdoorSuite, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_RETRIES", Backoff(0.001, 0.001))
    tries = tries_to_read(monkeypatch)
    _busy = await keep_busy(suite, worker)
    stream = suite.client.generate(REQUEST)
    await suite.accepted(stream)

    with store_away(suite.folder):
        worker.hold.set()
        another = await suite.paint(ImageRequest("another", num_inference_steps=1))
        with pytest.raises(Unavailable) as caught:
            _ = [event async for event in stream]

    assert another.image
    assert (caught.value.reason, (caught.value.retry_after_ms or 0) > 0) == ("INPUT_UNAVAILABLE", True)
    assert len(tries) == 24
    assert not [spec for spec in worker.executed if spec.init_image]


async def test_worker_prepares_image_while_another_request_runs(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.preparing_count = 1
    worker.change()
    await until(
        lambda: all(one.preparing_count for one in suite.frontdoor.interpreter.dataplane.state.workers.values())
    )
    _busy = await keep_busy(suite, worker)

    stream = suite.client.generate(REQUEST)
    await suite.accepted(stream)
    await worker.wait_until(lambda: len(worker.running) == 2)
    worker.hold.set()
    _ = [event async for event in stream]

    assert worker.executed[1].init_image == InitImage(IMAGE, 0.5)


async def test_request_with_lost_input_fails(
    suite: FrontdoorSuite, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_RETRIES", Backoff(0.001, 0.001))
    _busy = await keep_busy(suite, worker)
    stream = suite.client.generate(REQUEST)
    request_id = await suite.accepted(stream)
    (stored,) = stored_inputs(suite.folder)
    stored.unlink()

    worker.hold.set()
    with pytest.raises(Internal) as caught:
        _ = [event async for event in stream]

    status = await suite.client.get_request(request_id)
    assert (caught.value.reason, status.state) == ("INPUT_GONE", RequestState.FAILED)
    assert len(worker.executed) == 1


async def test_input_read_wrong_for_a_while_is_still_used(
    suite: FrontdoorSuite, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_RETRIES", Backoff(0.001, 0.001))
    _busy = await keep_busy(suite, worker)
    stream = suite.client.generate(REQUEST)
    await suite.accepted(stream)
    (stored,) = stored_inputs(suite.folder)
    sound = stored.read_bytes()
    stored.write_bytes(b"x" * len(sound))
    tries = tries_to_read(monkeypatch, lambda count: stored.write_bytes(sound) if count == 3 else None)

    worker.hold.set()
    _ = [event async for event in stream]

    assert len(tries) == 3
    assert worker.executed[1].init_image == InitImage(IMAGE, 0.5)
