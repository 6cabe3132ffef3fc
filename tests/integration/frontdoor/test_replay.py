"""Test who may replay which image, and the worker's order for it. Tests with the real worker check that the bytes are
equal."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, until
from lab.fixtures.held_models import HELD
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.generation import FromNoise, InitImage
from pentimento.domain.image_request import (
    CacheMode,
    Completed,
    GenerateEvent,
    ImageFormat,
    ImageRequest,
    ReplayInput,
    ReplayRequest,
)
from pentimento.domain.reasons import Reason
from services.frontdoor.journal.recovery import resolved_from_bytes
from tests.integration.frontdoor.inputs import png
from tests.support.calls import last_completed


async def last_of(stream: AsyncGenerator[GenerateEvent, None]) -> Completed:
    return await last_completed(stream)


async def test_replay_repeats_request_as_it_was(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    request = replace(REQUEST, seed=None, negative_prompt="blue", guidance_scale=2.5)
    first = await suite.paint(replace(request, format=ImageFormat.JPEG, encoding_quality=0))

    again, same = [await last_of(suite.client.replay(ReplayRequest(first.request_id), "key")) for _ in range(2)]
    third = await last_of(suite.client.replay(ReplayRequest(again.request_id)))
    with pytest.raises(FailedPrecondition) as caught:
        await suite.paint(REQUEST, idempotency_key="key")

    assert caught.value.reason == "IDEMPOTENCY_KEY_REUSED"
    assert same.request_id == again.request_id != first.request_id
    assert worker.executed == [first.provenance.spec] * 3
    assert [order.route.replay_of for order in worker.orders] == ["", first.request_id, again.request_id]
    assert not any(order.HasField("cache_grant") for order in worker.orders[1:])
    encoded = [(one.image_format, one.HasField("encoding_quality"), one.encoding_quality) for one in worker.orders]
    assert encoded == [("jpeg", True, 0)] * 3
    for one, replay_of in ((again, first), (third, again)):
        assert (one.image, one.format, one.provenance.encoding_quality) == (first.image, ImageFormat.JPEG, 0)
        assert (one.provenance.replay_equal, one.provenance.route.start) == (True, FromNoise())
        assert one.provenance.route.replay_of == replay_of.request_id
    assert first.provenance.replay_equal is None
    worker.picture_bytes = 4096
    other = await last_of(suite.client.replay(ReplayRequest(first.request_id)))
    assert other.image != first.image and other.provenance.replay_equal is False


async def test_replay_neither_reads_nor_writes_the_cache(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    first = await suite.paint(replace(REQUEST, cache=CacheMode.READ_WRITE))
    worker.hold.clear()
    stream = suite.client.replay(ReplayRequest(first.request_id))
    await suite.accepted(stream)

    (record,) = await asyncio.wrap_future(suite.frontdoor.journal.unfinished())

    assert resolved_from_bytes(record.request.body, record.request.body_format).cache is CacheMode.OFF
    worker.hold.set()
    await last_of(stream)


async def test_request_without_image_is_not_replayed(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    stream = suite.client.generate(REQUEST)
    request_id = await suite.accepted(stream)

    with pytest.raises(FailedPrecondition) as caught:
        await last_of(suite.client.replay(ReplayRequest(request_id)))

    assert caught.value.reason == "NOT_COMPLETED"
    worker.hold.set()
    await last_of(stream)


async def test_a_model_with_other_weights_is_refused_before_anything_is_accepted(
    suite: FrontdoorSuite, worker: PacedWorker
) -> None:
    first = await suite.paint()
    worker.held = replace(HELD, model_digest="sha256:newer")
    worker.change()
    catalogue = suite.frontdoor.fleet.catalogue
    await until(lambda: catalogue.find("").model_digest == "sha256:newer")

    with pytest.raises(FailedPrecondition) as caught:
        await last_of(suite.client.replay(ReplayRequest(first.request_id)))

    assert caught.value.reason == "MODEL_CHANGED"
    assert len(worker.executed) == 1 and not len(suite.frontdoor.jobs)


async def test_missing_ancestor_ends_request_and_is_journalled(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    first = await suite.paint()
    worker.fail_with = NotFound(Reason.ANCESTOR_GONE, "the latent that it started from is not kept any more")

    for _ in range(2):  # as read live, and as read from the journal
        with pytest.raises(NotFound) as caught:
            await last_of(suite.client.replay(ReplayRequest(first.request_id), "key"))
        assert caught.value.reason == "ANCESTOR_GONE" and "the latent" in caught.value.message

    assert len(worker.executed) == 2


async def test_replay_uses_the_inputs_again(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    image = png()
    first = await suite.paint(ImageRequest("a red circle", num_inference_steps=4, init_image=InitImage(image, 0.5)))

    with pytest.raises(InvalidArgument) as caught:
        await last_of(suite.client.replay(ReplayRequest(first.request_id)))
    again = await last_of(
        suite.client.replay(ReplayRequest(first.request_id, (ReplayInput("init_image.image", image),)))
    )

    assert caught.value.violations[0].field == "inputs"
    assert again.provenance.replay_equal
    assert [spec.init_image for spec in worker.executed] == [InitImage(image, 0.5)] * 2


async def test_replay_obeys_current_limits(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder) as suite:
        first = await suite.paint()

    async with running_suite(folder, max_request_cost=1.0) as suite:
        for asked in (ReplayRequest(first.request_id), ReplayRequest(first.request_id, deadline_ms=0)):
            with pytest.raises(InvalidArgument):
                await last_of(suite.client.replay(asked))


async def test_restarted_frontdoor_continues_a_replay(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder) as suite:
        first = await suite.paint(replace(REQUEST, cache=CacheMode.READ))
        worker.hold.clear()
        running = suite.client.generate(REQUEST)
        await suite.accepted(running)
        await worker.wait_until(lambda: worker.running)
        replaying = suite.client.replay(ReplayRequest(first.request_id))
        queued = await suite.accepted(replaying)

    worker.hold.set()
    async with running_suite(folder) as suite:
        await until(lambda: not len(suite.frontdoor.jobs))
        completed = (await suite.client.get_request(queued)).completed

    assert completed is not None
    assert completed.provenance.route.replay_of == first.request_id and completed.provenance.replay_equal
    assert worker.orders[-1].route.replay_of == first.request_id
