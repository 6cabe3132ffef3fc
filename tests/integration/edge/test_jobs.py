"""Test `/v1/jobs` over HTTP: submitted, left, listed, followed, fetched, cancelled."""

import asyncio
import base64
from typing import Any

import httpx
import pytest

from lab.fixtures.paced_worker import image_of
from pentimento.domain.generation import InitImage
from tests.integration.edge.conftest import EdgeUnderTest
from tests.integration.edge.sockets import connection
from tests.support.images import a_png

ASKED = {"prompt": "a red circle", "num_inference_steps": 3, "seed": 1}


async def submit(edge: EdgeUnderTest, key: str = "", **values: object) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return await edge.http.post("/v1/jobs", json={**ASKED, **values}, headers=headers)


async def ended(edge: EdgeUnderTest, job_id: str) -> dict[str, Any]:
    """Return its document once it has ended."""
    while True:
        document: dict[str, Any] = (await edge.http.get(f"/v1/jobs/{job_id}")).json()
        if document["finished_at"] is not None:
            return document
        await asyncio.sleep(0.01)


async def test_submitted_job_returns_its_images_later(edge: EdgeUnderTest) -> None:
    submitted = await submit(edge, "key")
    job_id = submitted.json()["id"]
    document = await ended(edge, job_id)
    result = (await edge.http.get(f"/v1/jobs/{job_id}/result")).json()
    again = await submit(edge, "key")

    assert (submitted.status_code, submitted.headers["location"]) == (202, f"/v1/jobs/{job_id}")
    assert (document["status"], document["size"], document["idempotency_key"]) == ("completed", "32x32", "key")
    assert document["expires_at"] == pytest.approx(document["finished_at"] + 24 * 3600, abs=1)
    (spec,) = [order.spec for order in edge.worker.orders]
    assert base64.b64decode(result["data"][0]["b64_json"]) == image_of(spec)
    assert (again.json()["id"], again.json()["replayed"]) == (job_id, True)


async def test_events_tell_of_a_job_and_leaving_them_cancels_nothing(edge: EdgeUnderTest) -> None:
    edge.worker.hold.clear()
    job_id = (await submit(edge)).json()["id"]
    await edge.worker.wait_until(lambda: edge.worker.running)
    async with edge.http.stream("GET", f"/v1/jobs/{job_id}/events") as leaving:
        assert "job.accepted" in await anext(leaving.aiter_text())
    edge.worker.hold.set()
    heard = await edge.http.get(f"/v1/jobs/{job_id}/events")

    names = [line.removeprefix("event: ") for line in heard.text.splitlines() if line.startswith("event: ")]
    assert heard.headers["content-type"].startswith("text/event-stream")
    assert (names[0], names[-1]) == ("job.accepted", "job.completed")
    assert (await ended(edge, job_id))["status"] == "completed"


async def test_head_of_events_does_not_wait_for_the_job(edge: EdgeUnderTest) -> None:
    edge.worker.hold.clear()
    job_id = (await submit(edge)).json()["id"]
    await edge.worker.wait_until(lambda: edge.worker.running)
    async with connection(edge) as (reader, writer):
        writer.write(f"HEAD /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        heads = [await reader.readuntil(b"\r\n\r\n")]
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        heads.append(await reader.readuntil(b"\r\n\r\n"))
    edge.worker.hold.set()

    assert b"text/event-stream" in heads[0] and b"application/json" in heads[1]
    assert (await ended(edge, job_id))["status"] == "completed"


async def test_cancelled_job_reports_its_state(edge: EdgeUnderTest) -> None:
    edge.worker.hold.clear()
    job_id = (await submit(edge)).json()["id"]
    await edge.worker.wait_until(lambda: edge.worker.running)
    running = await edge.http.get(f"/v1/jobs/{job_id}/result")
    cancelled = await edge.http.post(f"/v1/jobs/{job_id}/cancel")
    heard = await edge.http.get(f"/v1/jobs/{job_id}/events")

    assert (running.status_code, running.json()["error"]["code"]) == (409, "NOT_COMPLETED")
    assert cancelled.json()["status"] == "cancelled"
    assert heard.text.rstrip().split("\n\n")[-1].startswith("event: job.failed")


async def test_running_job_reports_its_progress(edge: EdgeUnderTest) -> None:
    edge.worker.hold.clear()
    job_id = (await submit(edge)).json()["id"]
    await edge.worker.wait_until(lambda: edge.worker.running)
    waiting = (await submit(edge, n=2)).json()["id"]

    async def shown(one: str) -> dict[str, Any]:
        document: dict[str, Any] = (await edge.http.get(f"/v1/jobs/{one}")).json()
        return document

    # The worker pauses before its last step.
    async with asyncio.timeout(60):
        while (running := await shown(job_id))["progress"] != {"step": 2, "step_count": 3}:
            pass
    several = await shown(waiting)
    edge.worker.hold.set()
    done = await ended(edge, job_id)

    assert (running["status"], done["status"], done["progress"]) == ("running", "completed", None)
    assert [one["id"] for one in several["images"]] == [f"{waiting}-0", f"{waiting}-1"]
    assert [one["progress"] for one in several["images"]] == [None, None]
    assert {one["status"] for one in several["images"]} <= {"accepted", "queued"}


async def test_lists_have_pages_and_filters(edge: EdgeUnderTest) -> None:
    submitted = [(await submit(edge)).json()["id"] for _ in range(3)]
    for job_id in submitted:
        await ended(edge, job_id)
    await edge.generate()

    first = (await edge.http.get("/v1/jobs?limit=2&status=completed,failed")).json()
    second = (await edge.http.get(f"/v1/jobs?limit=2&after={first['next']}")).json()
    everything = (await edge.http.get("/v1/jobs?jobs_only=false")).json()
    none = (await edge.http.get("/v1/jobs?status=running")).json()

    assert [job["id"] for job in (*first["data"], *second["data"])] == submitted[::-1]
    assert (first["has_more"], second["has_more"], second["next"]) == (True, False, None)
    assert [job["detached"] for job in everything["data"]] == [False, True, True, True]
    assert none["data"] == []


async def test_a_job_starts_from_an_image_and_its_mask(edge: EdgeUnderTest) -> None:
    files = [("image", a_png()), ("mask", a_png(colour="white"))]
    asked = {"prompt": "a red circle", "strength": "0.5", "num_inference_steps": "4"}
    submitted = await edge.http.post("/v1/jobs", data=asked, files=files, headers={"Idempotency-Key": "key"})
    job_id = submitted.json()["id"]
    await ended(edge, job_id)
    result = (await edge.http.get(f"/v1/jobs/{job_id}/result")).json()

    (spec,) = edge.worker.executed
    assert (submitted.status_code, submitted.headers["location"]) == (202, f"/v1/jobs/{job_id}")
    assert spec.init_image == InitImage(a_png(), 0.5, a_png(colour="white"))
    assert base64.b64decode(result["data"][0]["b64_json"]) == image_of(spec)


async def test_several_images_are_shown_and_fetched_together(edge: EdgeUnderTest) -> None:
    job_id = (await submit(edge, "key", n=2)).json()["id"]
    document = await ended(edge, job_id)
    result = (await edge.http.get(f"/v1/jobs/{job_id}/result")).json()
    listed = (await edge.http.get("/v1/jobs")).json()["data"]

    assert (document["id"], document["status"], document["group_id"]) == (job_id, "completed", None)
    assert [(one["group_id"], one["idempotency_key"]) for one in listed] == [(job_id, "key")] * 2
    assert [image["request_id"] for image in result["data"]] == [f"{job_id}-0", f"{job_id}-1"]
    assert [image["image_index"] for image in result["data"]] == [0, 1]


async def submit_three_with_one_completed(edge: EdgeUnderTest) -> str:
    """Return the job's id once the second image runs."""
    edge.worker.hold.clear()
    job_id: str = (await submit(edge, n=3)).json()["id"]
    await edge.worker.wait_until(lambda: any(one.step == 2 for one in edge.worker.running.values()))
    edge.worker.hold.set()
    edge.worker.hold.clear()
    await edge.worker.wait_until(lambda: len(edge.worker.executed) == 2)
    return job_id


async def test_result_of_several_is_missing_until_all_have_ended(edge: EdgeUnderTest) -> None:
    job_id = await submit_three_with_one_completed(edge)

    early = await edge.http.get(f"/v1/jobs/{job_id}/result")

    assert (early.status_code, early.json()["error"]["code"]) == (409, "NOT_COMPLETED")
    edge.worker.hold.set()
    await ended(edge, job_id)
    assert len((await edge.http.get(f"/v1/jobs/{job_id}/result")).json()["data"]) == 3


@pytest.mark.parametrize("response_format", ["b64_json", "url"])
async def test_result_of_several_omits_deleted_image(edge: EdgeUnderTest, response_format: str) -> None:
    job_id = (await submit(edge, n=2)).json()["id"]
    await ended(edge, job_id)
    objects, asked = edge.suite.frontdoor.journal.objects, {"response_format": response_format}
    await asyncio.wrap_future(objects.forget_pictures("default", 1))

    result = await edge.http.get(f"/v1/jobs/{job_id}/result", params=asked)
    await asyncio.wrap_future(objects.forget_pictures("default", 1))
    nothing = await edge.http.get(f"/v1/jobs/{job_id}/result", params=asked)

    (image,), (failed,) = result.json()["data"], result.json()["failed"]
    assert {image["request_id"], failed["request_id"]} == {f"{job_id}-0", f"{job_id}-1"}
    assert {image["image_index"], failed["image_index"]} == {0, 1}
    assert response_format in image
    assert failed["error"]["code"] == "RESULT_GONE"
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (404, "RESULT_GONE")


async def test_the_result_of_several_names_those_that_did_not_come(edge: EdgeUnderTest) -> None:
    job_id = await submit_three_with_one_completed(edge)
    await edge.http.post(f"/v1/jobs/{job_id}/cancel")

    result = (await edge.http.get(f"/v1/jobs/{job_id}/result")).json()

    assert len(result["data"]) == 1
    generated = result["data"][0]["image_index"]
    assert [one["image_index"] for one in result["failed"]] == [index for index in range(3) if index != generated]
    assert [one["request_id"] for one in result["failed"]] == [
        f"{job_id}-{index}" for index in range(3) if index != generated
    ]
    assert {one["error"]["code"] for one in result["failed"]} == {"CANCELLED"}
    assert {one["error"]["type"] for one in result["failed"]} == {"request_cancelled"}
