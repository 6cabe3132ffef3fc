"""Bound what a tenant may store: more is refused before it is accepted."""

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.errors import NotFound, ResourceExhausted, Unavailable
from pentimento.domain.generation import InitImage
from pentimento.domain.image_request import ImageRequest
from pentimento.domain.jobs import RequestState
from pentimento.domain.tenants import DEFAULT_TENANT
from pentimento.stores.objects import open_objects
from pentimento.stores.objects.store import refer_to
from services.frontdoor.metrics import BAD_PICTURES
from tests.integration.frontdoor.inputs import png


async def refusal(suite: FrontdoorSuite, request: ImageRequest = REQUEST) -> ResourceExhausted:
    with pytest.raises(ResourceExhausted) as caught:
        await suite.paint(request)
    assert (caught.value.retry_after_ms or 0) > 0
    return caught.value


async def not_serving_reason(folder: Path) -> str:
    """Return why health says NOT_SERVING, once it does."""
    async with grpc.aio.insecure_channel(f"unix:{folder / 'f'}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while True:
            call = stub.Check(health_pb2.HealthCheckRequest())
            if (await call).status == health_pb2.HealthCheckResponse.NOT_SERVING:
                return dict(await call.trailing_metadata())["pentimento-not-serving-reason"]
            await asyncio.sleep(0.01)


async def forgotten(suite: FrontdoorSuite, request_id: str, reason: str) -> None:
    """Return once a client receives that reason; an image deleted between its row and its object first gives another
    one."""
    while True:
        try:
            await suite.client.get_request(request_id)
        except NotFound as error:
            if error.reason == reason:
                return
            assert error.reason == "RESULT_GONE"
        await asyncio.sleep(0.01)


async def test_unfinished_requests_of_a_tenant_are_bounded_and_no_other_tenants(
    folder: Path, worker: PacedWorker
) -> None:
    worker.hold.clear()
    async with running_suite(folder, tenant_unfinished_requests=2) as suite:
        streams = [suite.client.generate(REQUEST) for _ in range(2)]
        for stream in streams:
            await suite.accepted(stream)

        refused = await refusal(suite)
        other = suite.frontdoor.api.generate("another", REQUEST)
        assert await anext(other)
        await other.aclose()
        accepted_count = (await suite.operator.status()).accepted_count
        worker.hold.set()
        for stream in streams:
            assert [event async for event in stream]
        assert (await suite.paint()).image

    assert (refused.reason, refused.metadata) == ("QUOTA_EXCEEDED", {"quota": "tenant-unfinished-requests"})
    assert accepted_count == 3


async def test_bytes_that_unfinished_requests_came_with_are_bounded_and_shared_ones_count_once(
    folder: Path, worker: PacedWorker
) -> None:
    worker.hold.clear()
    first, second = png("red"), png("blue")
    with_first = ImageRequest("x", num_inference_steps=4, init_image=InitImage(first, 0.5))
    with_second = ImageRequest("x", num_inference_steps=4, init_image=InitImage(second, 0.5))
    async with running_suite(folder, tenant_input_bytes=len(first) + len(second) - 1) as suite:
        streams = [suite.client.generate(with_first) for _ in range(2)]
        for stream in streams:
            await suite.accepted(stream)

        refused = await refusal(suite, with_second)
        worker.hold.set()
        for stream in streams:
            assert [event async for event in stream]

    assert refused.metadata == {"quota": "tenant-input-bytes"}


async def test_a_disk_that_is_nearly_full_takes_no_more_requests(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder, min_free_bytes=1 << 62) as suite:
        refused = await refusal(suite)
        told = await suite.operator.status()
        health = await not_serving_reason(folder)

    reason = f"QUOTA_EXCEEDED: min-free-bytes: less than {1 << 62} bytes are left on the disk"
    assert refused.metadata == {"quota": "min-free-bytes"}
    assert (told.accepted_count, told.rejected_count, worker.executed) == (0, 1, [])
    assert [(one.reason, one.request_count) for one in told.rejections] == [("QUOTA_EXCEEDED", 1)]
    assert told.not_accepting_reason == health == reason


async def test_journal_that_was_taken_away_makes_frontdoor_unready(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder) as suite:
        for file in folder.glob("journal.sqlite*"):
            file.unlink()
        with pytest.raises(Unavailable):
            await suite.paint()
        health = await not_serving_reason(folder)
        told = await suite.operator.status()

    assert health == told.not_accepting_reason
    assert health.startswith("STORE_UNAVAILABLE: ledger cannot be reached")
    assert [(one.reason, one.request_count) for one in told.rejections] == [("STORE_UNAVAILABLE", 1)]


async def test_tenant_over_result_bytes_loses_oldest_image_but_no_request(folder: Path, worker: PacedWorker) -> None:
    worker.picture_bytes = 1000
    async with running_suite(folder, tenant_result_bytes=2500) as suite:
        others = [event async for event in suite.frontdoor.api.generate("another", REQUEST)][-1]
        old, middle, new = [await suite.paint(idempotency_key=f"key-{number}") for number in range(3)]

        await forgotten(suite, old.request_id, "RESULT_GONE")
        with pytest.raises(NotFound) as replayed:
            await suite.paint(idempotency_key="key-0")
        without_image = await suite.client.get_request(old.request_id, omit_image=True)
        kept = [(await suite.client.get_request(one.request_id)).completed for one in (middle, new)]
        status = await suite.frontdoor.api.tenants.get_request("another", others.request_id)  # type: ignore[union-attr]
        # Rows first, objects second.
        await until(lambda: len(list((folder / "objects").rglob("results.*"))) == 3)

    assert replayed.value.reason == "RESULT_GONE"
    assert without_image.completed is not None
    assert (without_image.state, without_image.completed.provenance) == (RequestState.COMPLETED, old.provenance)
    assert kept == [middle, new]
    assert status.completed == others


@pytest.mark.parametrize(
    ("setting", "reason"),
    [({"tenant_result_bytes": 2500}, "RESULT_GONE"), ({"tenant_finished_requests": 2}, "UNKNOWN_REQUEST")],
    ids=["bytes", "number"],
)
async def test_oldest_results_of_before_restart_are_forgotten(
    folder: Path, worker: PacedWorker, setting: dict[str, int], reason: str
) -> None:
    worker.picture_bytes = 1000
    async with running_suite(folder) as suite:
        images = [await suite.paint() for _ in range(3)]

    async with running_suite(folder, **setting) as suite:
        await forgotten(suite, images[0].request_id, reason)
        for kept in images[1:]:
            assert (await suite.client.get_request(kept.request_id)).completed == kept


async def test_only_unreferenced_images_are_swept(suite: FrontdoorSuite) -> None:
    completed = await suite.paint()
    objects = open_objects(f"file://{suite.folder / 'objects'}")
    objects.put("results/orphan", b"left by a crash")
    objects.put("cache/x", b"the gateway's")

    await suite.frontdoor.retention.sweep()
    after_one = sorted(objects.keys())
    await suite.frontdoor.retention.sweep()

    assert "results/orphan" in after_one, "it might have been stored a moment ago by another process"
    assert sorted(set(after_one) - set(objects.keys())) == ["results/orphan"]
    assert (await suite.client.get_request(completed.request_id)).completed == completed


async def test_image_deleted_during_read_is_not_counted_as_missing(suite: FrontdoorSuite) -> None:
    """An alert reports a missing object that a row names."""
    frontdoor, completed = suite.frontdoor, await suite.paint()
    record = await asyncio.wrap_future(frontdoor.journal.get(completed.request_id, DEFAULT_TENANT))
    assert record is not None and record.result is not None
    before = missing_images()
    forgotten_now = replace(record, result=replace(record.result, image=refer_to("results/unnamed", b"x")))

    for read, count in ((forgotten_now, 0), (record, 1)):
        open_objects(f"file://{suite.folder / 'objects'}").delete(record.result.image.key)
        with pytest.raises(NotFound, match="no longer stored"):
            await frontdoor.results.load(read)
        assert missing_images() - before == count


def missing_images() -> float:
    return BAD_PICTURES.labels("missing")._value.get()
