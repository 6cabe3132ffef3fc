"""Lose no image while the object store is away, slow or full, and bound the images that wait for it."""

import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.errors import PentimentoError, ResourceExhausted
from pentimento.domain.generation import InitImage, ObjectReference
from pentimento.domain.image_request import Completed, GenerateEvent, ImageFailed, ImageRequest
from pentimento.domain.jobs import RequestState
from pentimento.stores.errors import StoreFull
from pentimento.stores.objects.filesystem import FilesystemObjectStore
from tests.integration.frontdoor.inputs import png, store_away


def stored_images(folder: Path) -> list[Path]:
    return list((folder / "objects").rglob("results.*"))


async def test_image_is_returned_and_found_while_store_is_away(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    with store_away(suite.folder):
        first = await suite.paint(idempotency_key="key")
        status = await suite.client.get_request(first.request_id)
        again = await suite.paint(idempotency_key="key")

    assert status.completed == again == first
    assert first.image
    assert len(worker.executed) == 1


async def test_waiting_image_survives_restart(folder: Path, worker: PacedWorker) -> None:
    with ExitStack() as away:
        async with running_suite(folder) as suite:
            away.enter_context(store_away(folder))
            completed = await suite.paint()

        async with running_suite(folder) as suite:
            status = await suite.client.get_request(completed.request_id)

    assert status.completed == completed


async def test_images_finished_during_the_move_are_stored_directly(
    suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If more images arrive than are moved, the move would never end."""
    put, hangs, let_go = FilesystemObjectStore.put, threading.Event(), threading.Event()
    moved: list[object] = []

    def hang_the_second(*arguments: object, **options: object) -> object:
        """Block the put after the first successful one; earlier puts may fail while the store is still away."""
        if moved and not hangs.is_set():
            hangs.set()
            let_go.wait(60)
        moved.append(put(*arguments, **options))  # type: ignore[arg-type]
        return moved[-1]

    def waiting_count() -> int:
        return len(suite.frontdoor.journal.objects.spooled().result())

    with store_away(suite.folder):
        for _ in range(3):
            await suite.paint()
        monkeypatch.setattr(FilesystemObjectStore, "put", hang_the_second)
    await until(hangs.is_set)

    await suite.paint()

    assert waiting_count() == 2
    let_go.set()
    await until(lambda: waiting_count() == 0)
    assert len(stored_images(suite.folder)) == 4


async def test_hanging_store_delays_image_for_bounded_time(
    folder: Path, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    put = FilesystemObjectStore.put

    def hanging(*arguments: object, **options: object) -> object:
        let_go.wait()
        return put(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(FilesystemObjectStore, "put", hanging)
    async with running_suite(folder, store_timeout_s=0.05) as suite:
        pictures = [await suite.paint() for _ in range(10)]
        let_go.set()

    assert all(picture.image for picture in pictures)


async def test_full_store_is_treated_as_missing(suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> object:
        raise StoreFull("object store", "no space left")

    monkeypatch.setattr(FilesystemObjectStore, "put", full)

    completed = await suite.paint()

    assert (await suite.client.get_request(completed.request_id)).completed == completed


async def test_full_spool_fails_image_and_refuses_requests(folder: Path, worker: PacedWorker) -> None:
    worker.picture_bytes = 10_000
    async with running_suite(folder, min_free_bytes=60_000) as suite:
        with store_away(folder):
            assert (await suite.paint()).image
            with pytest.raises(ResourceExhausted) as refused:
                await suite.paint()
            status = await suite.operator.status()

    assert (refused.value.reason, status.accepted_count) == ("SPOOL_FULL", 1)
    assert (refused.value.retry_after_ms or 0) > 0


async def test_spool_of_one_tenant_leaves_room_for_others(folder: Path, worker: PacedWorker) -> None:
    worker.picture_bytes = 10_000
    async with running_suite(folder, min_free_bytes=60_000) as suite:
        api = suite.frontdoor.api
        with store_away(folder):
            for tenant in ("greedy", "modest"):
                assert [event async for event in api.generate(tenant, REQUEST)]
            with pytest.raises(ResourceExhausted, match="of this tenant"):
                [event async for event in api.generate("greedy", REQUEST)]


async def test_request_with_image_completes_while_store_is_away(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    image = png()
    with store_away(suite.folder):
        completed = await suite.paint(ImageRequest("x", num_inference_steps=4, init_image=InitImage(image, 0.5)))

    assert completed.image
    assert worker.executed[0].init_image == InitImage(image, 0.5)


async def test_store_error_hides_path_and_key(suite: FrontdoorSuite) -> None:
    completed = await suite.paint()

    with store_away(suite.folder), pytest.raises(PentimentoError) as caught:
        await suite.client.get_request(completed.request_id)

    words = f"{caught.value.message} {caught.value.metadata}"
    assert str(suite.folder) not in words and "results" not in words and "sha256" not in words


@pytest.mark.parametrize("count", [1, 2])
async def test_retry_of_unkept_image_begins_again_with_room(folder: Path, worker: PacedWorker, count: int) -> None:
    request = replace(REQUEST, image_count=count)
    worker.picture_bytes = 10_000
    async with running_suite(folder, min_free_bytes=10_000) as suite:
        with store_away(folder):
            stream = suite.client.generate(request, "key")
            request_id = await suite.accepted(stream)
            refused = [event async for event in failures(stream)]
            status = await suite.client.get_request(request_id)
        (failed_as,) = {(error.reason, (error.retry_after_ms or 0) > 0) for error in refused}
        again = suite.client.generate(request, "key")
        another_id = await suite.accepted(again)
        images = [event async for event in again if isinstance(event, Completed)]

    assert failed_as == ("SPOOL_FULL", True)
    assert status.state is RequestState.FAILED and status.error_reason in ("SPOOL_FULL", "")
    assert another_id != request_id
    assert len(images) == count


async def failures(stream: AsyncIterator[GenerateEvent]) -> AsyncIterator[PentimentoError]:
    """Return the errors of a call's images."""
    try:
        async for event in stream:
            if isinstance(event, ImageFailed):
                yield event.error
    except PentimentoError as error:
        yield error


async def test_image_waits_for_room_on_full_disk(suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch) -> None:
    tries, put, has_room = [0], FilesystemObjectStore.put, threading.Event()

    def full(store: FilesystemObjectStore, *arguments: Any, **options: Any) -> ObjectReference:
        if has_room.is_set():
            return put(store, *arguments, **options)
        raise StoreFull("object store", "no space left")

    def spool_full(*arguments: object) -> "Future[bool]":
        tries[0] += 1
        if tries[0] == 3:
            has_room.set()
        refused: Future[bool] = Future()
        refused.set_exception(StoreFull("ledger", "no space left"))
        return refused

    monkeypatch.setattr(FilesystemObjectStore, "put", full)
    monkeypatch.setattr(suite.frontdoor.journal.objects, "spool", spool_full)

    completed = await suite.paint(idempotency_key="key")

    assert (tries[0], (await suite.client.get_request(completed.request_id)).completed) == (3, completed)
