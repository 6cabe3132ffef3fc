"""Test that cache mode, deadline, cost, user and background of a call are handled from HTTP to the journal."""

import asyncio
from typing import Any

import httpx
import pytest

from pentimento.domain.image_request import CacheMode, ResolvedRequest
from services.frontdoor.journal.recovery import resolved_from_bytes
from tests.integration.edge.conftest import EdgeUnderTest, openai_client

# Width, height and steps of the double's default image.
COST = 32 * 32 * 2


async def journalled(edge: EdgeUnderTest, **values: Any) -> ResolvedRequest:
    """Return the journal's record of a running job, and let the job complete."""
    edge.worker.hold.clear()
    answer = await edge.http.post("/v1/jobs", json={"prompt": "x", "num_inference_steps": 2, **values})
    assert answer.status_code == 202, answer.text
    (record,) = await asyncio.wrap_future(edge.suite.frontdoor.journal.unfinished())
    edge.worker.hold.set()
    await edge.http.get(f"/v1/jobs/{answer.json()['id']}/events")
    return resolved_from_bytes(record.request.body, record.request.body_format)


async def test_cache_quality_and_background_are_kept(edge: EdgeUnderTest) -> None:
    caches = {
        "off": CacheMode.OFF,
        "read": CacheMode.READ,
        "read-write": CacheMode.READ_WRITE,
        "tenant": CacheMode.READ_WRITE,
        "shared": CacheMode.SHARED,
    }
    qualities = {"low": 0.8, "medium": 0.9, "high": 1.0, "hd": 1.0, 0.25: 0.25, "auto": None}

    assert {word: (await journalled(edge, cache=word)).cache for word in caches} == caches
    assert {word: (await journalled(edge, quality=word)).quality for word in qualities} == qualities
    for background in ("auto", "opaque"):
        answer = await edge.generate(num_inference_steps=1, background=background)
        assert (answer.status_code, answer.json()["background"]) == (200, "opaque")


async def test_deadline_is_stored_and_a_passed_one_is_reported(edge: EdgeUnderTest) -> None:
    kept = await journalled(edge, deadline_ms=55_555)
    edge.worker.hold.clear()

    answer = await edge.generate(num_inference_steps=2, deadline_ms=200)

    assert kept.deadline_ms == 55_555
    assert (answer.status_code, answer.json()["error"]["type"]) == (504, "timeout_error")
    async with asyncio.timeout(60):
        await edge.worker.wait_until(lambda: not edge.worker.running)


async def test_passed_deadline_is_not_retried_by_openai_client(edge: EdgeUnderTest) -> None:
    from openai import APIStatusError

    edge.worker.hold.clear()
    asked: list[httpx.Request] = []

    async def note(request: httpx.Request) -> None:
        asked.append(request)

    async with (
        httpx.AsyncClient(event_hooks={"request": [note]}, timeout=60) as http,
        openai_client(edge, http_client=http, max_retries=2) as ai,
    ):
        with pytest.raises(APIStatusError) as told:
            await ai.images.generate(prompt="x", extra_body={"num_inference_steps": 2, "deadline_ms": 200})

    assert (told.value.status_code, len(asked)) == (504, 1)


async def test_image_over_max_cost_is_refused(edge: EdgeUnderTest) -> None:
    enough = await edge.generate(num_inference_steps=2, max_cost=COST)
    too_little = await edge.generate(num_inference_steps=2, max_cost=COST - 1)
    of_two = await edge.generate(num_inference_steps=2, max_cost=2 * COST - 1, n=2)
    job = await edge.http.post("/v1/jobs", json={"prompt": "x", "num_inference_steps": 2, "max_cost": COST - 1})

    refused = [(one.status_code, one.json()["error"]["param"]) for one in (too_little, of_two, job)]
    assert enough.status_code == 200
    assert refused == [(400, "max_cost")] * 3
    assert len(edge.worker.executed) == 1


async def test_user_of_image_is_stored_nowhere(edge: EdgeUnderTest) -> None:
    values = {"user": "canary-of-a-user", "safety_identifier": "canary-of-another"}

    answers = [await edge.generate(num_inference_steps=1, **values) for _ in range(2)]
    edge.worker.hold.clear()
    submitted = await edge.http.post("/v1/jobs", json={"prompt": "x", **values})
    files = [path.read_bytes() for path in edge.suite.folder.rglob("*") if path.is_file()]
    edge.worker.hold.set()
    await edge.http.get(f"/v1/jobs/{submitted.json()['id']}/events")

    assert [answer.status_code for answer in answers] == [200, 200]
    assert b"canary-of-a" not in b"".join([*files, *(answer.content for answer in answers)])
