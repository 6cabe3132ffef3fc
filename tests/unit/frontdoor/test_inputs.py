"""Test input images of requests: shared, released by one, in a slow store."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from pentimento.domain.errors import Cancelled, Unavailable
from pentimento.domain.generation import GenerationSpec, InitImage, ObjectReference, Scheduler
from pentimento.domain.image_request import CacheMode, ImageFormat, ResolvedRequest
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.objects.store import digest_of, refer_to
from services.frontdoor.answers.audience import Audience
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.requests.jobs import ClientRequest, Job

IMAGE = b"an image"
SPEC = GenerationSpec("a red circle", "", "tiny", 32, 32, 10, 3.0, Scheduler.DDIM, 7, init_image=InitImage(IMAGE, 0.5))
RESOLVED = ResolvedRequest(SPEC, CacheMode.OFF, ImageFormat.PNG, None, 1000)


class SlowKeeper:
    """An object keeper that is done once it may be; `named` are the keys that the journal names."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.kept: dict[str, bytes] = {}
        self.named: set[str] = set()
        self.asked = 0

    async def put(self, tenant: str, key: str, data: bytes) -> ObjectReference:
        await self.may_end.wait()
        self.kept[key] = data
        return refer_to(key, data)

    async def get(self, reference: ObjectReference) -> bytes:
        self.asked += 1
        if not self.may_end.is_set():
            raise StoreUnavailable("object store", "it is away")
        return self.kept[reference.key]

    async def is_named(self, key: str) -> bool:
        return key in self.named

    async def delete(self, key: str) -> None:
        del self.kept[key]


@pytest.fixture
def keeper() -> SlowKeeper:
    return SlowKeeper()


@pytest.fixture
def background() -> list[Coroutine[Any, Any, Any]]:
    return []


@pytest.fixture
def inputs(keeper: SlowKeeper, background: list[Coroutine[Any, Any, Any]]) -> Inputs:
    return Inputs(keeper, lambda work, name: background.append(work))  # type: ignore[arg-type]


def claimed(inputs: Inputs, request_id: str) -> Job:
    resolved = inputs.claim("acme", request_id, RESOLVED, {"init_image.image": digest_of(IMAGE)})
    request = ClientRequest(request_id, "acme", resolved, (), 0.0, 0.0, 60.0, 60.0)
    return Job(request, Audience(request_id))


async def stored(inputs: Inputs, keeper: SlowKeeper, request_id: str = "r1") -> Job:
    job = claimed(inputs, request_id)
    keeper.may_end.set()
    await inputs.store(job)
    return job


async def test_request_that_leaves_does_not_cancel_shared_store(inputs: Inputs, keeper: SlowKeeper) -> None:
    leaving, staying = (asyncio.create_task(inputs.store(claimed(inputs, name))) for name in ("r1", "r2"))
    await asyncio.sleep(0)

    leaving.cancel()
    await asyncio.wait([leaving])
    keeper.may_end.set()
    await staying

    assert list(keeper.kept.values()) == [IMAGE]


async def test_input_of_other_frontdoor_is_kept(
    inputs: Inputs, keeper: SlowKeeper, background: list[Coroutine[Any, Any, Any]]
) -> None:
    job = await stored(inputs, keeper)
    job.elsewhere = True

    inputs.release(job)

    assert background == []
    assert list(keeper.kept.values()) == [IMAGE]


@pytest.mark.parametrize("pinned", [False, True])
async def test_unused_input_is_deleted_unless_journal_names_it(
    inputs: Inputs, keeper: SlowKeeper, background: list[Coroutine[Any, Any, Any]], pinned: bool
) -> None:
    job = await stored(inputs, keeper)
    keeper.named = set(keeper.kept) if pinned else set()

    inputs.release(job)
    for work in background:
        await work

    assert list(keeper.kept.values()) == ([IMAGE] if pinned else [])


async def test_nothing_is_loaded_for_a_request_that_has_ended(inputs: Inputs, keeper: SlowKeeper) -> None:
    job = await stored(inputs, keeper)
    job.ended.set()

    with pytest.raises(Cancelled):
        await inputs.load(job, job.request.resolved)


async def test_absent_store_is_not_retried_for_ended_request(inputs: Inputs, keeper: SlowKeeper) -> None:
    job = await stored(inputs, keeper)
    keeper.may_end.clear()
    job.ended.set()

    with pytest.raises(Unavailable, match="cannot be read now"):
        await inputs.load(job, job.request.resolved)

    assert keeper.asked == 1


async def test_the_spec_is_whole_again_once_it_is_loaded(inputs: Inputs, keeper: SlowKeeper) -> None:
    job = await stored(inputs, keeper)

    assert job.request.resolved.spec == replace(SPEC, init_image=InitImage(b"", 0.5))
    assert await inputs.load(job, job.request.resolved) == SPEC
