"""Test the console's pages and data over HTTP, without a browser, with a real edge and a real frontdoor."""

import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from lab.fixtures.paced_worker import image_of
from pentimento.domain.generation import InitImage
from tests.integration.edge.conftest import EdgeUnderTest
from tests.support.images import a_png

DATA = "/console/data"
PAINT = {"prompt": "a red circle", "num_inference_steps": 4, "seed": 5, "preview_every_steps": 2}


@asynccontextmanager
async def generating(edge: EdgeUnderTest, path: str = "generate", **values: Any) -> AsyncIterator[AsyncIterator[Any]]:
    """Yield an image's events, as (name, values)."""
    async with edge.http.stream("POST", f"{DATA}/{path}", json=values or PAINT) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events_of(answer)


async def events_of(answer: httpx.Response) -> AsyncIterator[Any]:
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


async def generate(edge: EdgeUnderTest, path: str = "generate", **values: Any) -> list[Any]:
    async with generating(edge, path, **values) as events:
        return [event async for event in events]


async def test_image_has_events_record_file_and_replay(edge: EdgeUnderTest) -> None:
    events = await generate(edge)
    names, completed = [name for name, _ in events], events[-1][1]
    assert (names[:2], names[-1]) == (["accepted", "routed"], "completed")
    # A fast worker reports no step before the end.
    assert set(names[2:-1]) <= {"progress"}
    assert base64.b64decode(completed["image"]) == image_of(edge.worker.executed[0])
    assert completed["request_id"] == events[0][1]["request_id"] == completed["provenance"]["request_id"]
    assert completed["provenance"]["route"]["start"] == events[1][1]["route"]["start"] == {"kind": "FromNoise"}
    assert edge.worker.executed[0].seed == 5

    found = await edge.http.get(f"{DATA}/requests/{completed['request_id']}")
    image = await edge.http.get(f"{DATA}/requests/{completed['request_id']}/image")
    unknown = await edge.http.get(f"{DATA}/requests/r-none")
    assert found.json()["provenance"] == completed["provenance"]
    assert (image.headers["content-type"], image.headers["cache-control"]) == ("image/png", "no-store")
    assert image.content == base64.b64decode(completed["image"])
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "UNKNOWN_REQUEST")

    again = (await generate(edge, "replay", request_id=completed["request_id"], preview_every_steps=0))[-1][1]
    assert (again["image"], again["provenance"]["replay_equal"]) == (completed["image"], True)


async def test_deployment_list_and_status_of_images(edge: EdgeUnderTest) -> None:
    deployment = (await edge.http.get(f"{DATA}/deployment")).json()
    access = (await edge.http.get(f"{DATA}/access")).json()
    explained = (await edge.http.post(f"{DATA}/explain", json={"prompt": "a red circle", "neighbour_count": 5})).json()
    assert [model["name"] for model in deployment["models"]] == [edge.worker.held.model]
    # This edge has neither a gateway nor a controller.
    features = deployment["features"]
    assert (features["cache"], features["controller"], features["listing"]) == (False, False, True)
    assert access == {"tokens": False, "images": True, "suite": False}
    assert (explained["route"]["start"], explained["neighbours"]) == ({"kind": "FromNoise"}, [])
    assert explained["route"]["model"] == edge.worker.held.model
    assert edge.worker.executed == []

    # Browsers would round such a seed, so it is sent as text.
    generated = [(await generate(edge, **{**PAINT, "seed": seed}))[-1][1] for seed in (7, 2**64 - 1, str(2**64 - 1))]
    assert [spec.seed for spec in edge.worker.executed] == [7, 2**64 - 1, 2**64 - 1]
    assert generated[2]["provenance"]["spec"]["seed"] == "18446744073709551615"

    first = (await edge.http.get(f"{DATA}/requests?page_size=2")).json()
    rest = (await edge.http.get(f"{DATA}/requests", params={"page_token": first["next_page_token"]})).json()
    wrong = await edge.http.get(f"{DATA}/requests?page_size=-1")
    ids = [one["request_id"] for one in generated]
    assert [one["request_id"] for one in (*first["requests"], *rest["requests"])] == ids[::-1]
    assert (len(first["requests"]), rest["next_page_token"]) == (2, "")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "page_size")

    status = (await edge.http.get(f"{DATA}/status")).json()
    assert (status["fleet"], status["cache"], status["unanswered"]) == (None, None, {})
    assert status["frontdoor"]["completed_count"] == "3"
    assert status["frontdoor"]["starts"] == [{"kind": "noise", "image_count": "3"}]
    assert status["frontdoor"]["latencies"][-1]["upper_bound_s"] == "Infinity"


async def test_several_images_have_separate_events(edge: EdgeUnderTest) -> None:
    events = await generate(edge, **PAINT, n=3)

    accepted = events[0][1]
    completed = sorted((values for name, values in events if name == "completed"), key=lambda one: one["image_index"])
    assert [one["request_id"] for one in completed] == accepted["image_request_ids"]
    assert [one["provenance"]["spec"]["seed"] for one in completed] == ["5", "6", "7"]
    assert len({one["image"] for one in completed}) == 3
    assert {values["image_index"] for name, values in events if name == "routed"} == {0, 1, 2}


async def test_failed_image_of_several_is_reported_and_others_complete(edge: EdgeUnderTest) -> None:
    edge.worker.hold.clear()
    async with generating(edge, **PAINT, n=2) as events:
        _, accepted = await anext(events)
        await edge.worker.wait_until(lambda: edge.worker.running)
        await edge.suite.client.cancel(accepted["image_request_ids"][1])
        edge.worker.hold.set()
        rest = {name: values async for name, values in events if name in ("completed", "failed")}

    assert (rest["completed"]["image_index"], rest["failed"]["image_index"]) == (0, 1)
    assert rest["failed"]["error"]["type"] == "request_cancelled"


async def test_an_image_and_its_mask_reach_the_worker_and_the_replay(edge: EdgeUnderTest) -> None:
    image, mask = a_png(8, 4, "red"), a_png(8, 4, "white")
    sent = {"image": base64.b64encode(image).decode(), "mask": base64.b64encode(mask).decode()}

    first = (await generate(edge, **PAINT, **sent, strength=0.5, size="32x32"))[-1][1]
    inputs = [{"field": f"init_image.{name}", "data": data} for name, data in sent.items()]
    again = (await generate(edge, "replay", request_id=first["request_id"], inputs=inputs))[-1][1]

    assert [spec.init_image for spec in edge.worker.executed] == [InitImage(image, 0.5, mask)] * 2
    assert again["image"] == first["image"]


async def test_failed_image_ends_its_stream_with_error(edge: EdgeUnderTest) -> None:
    edge.worker.hold.clear()
    async with generating(edge) as events:
        _, accepted = await anext(events)
        await edge.worker.wait_until(lambda: edge.worker.running)
        await edge.suite.client.cancel(accepted["request_id"])
        last = [event async for event in events][-1]

    assert (last[0], last[1]["error"]["type"]) == ("error", "request_cancelled")


async def test_charts_begin_before_anybody_looked(edge: EdgeUnderTest) -> None:
    before = (await edge.http.get(f"{DATA}/history")).json()["samples"]
    await generate(edge)
    await edge.history.look()

    told = (await edge.http.get(f"{DATA}/history", params={"after": before[-1]["at"]})).json()
    wrong = await edge.http.get(f"{DATA}/history?after=now")

    assert told["samples"][-1] in json.loads(edge.history.ring.after(before[-1]["at"]))
    assert (told["samples"][-1]["completed"], told["samples"][-1]["starts"]) == (1, [["noise", 0, 1]])
    assert told["interval_ms"] == 5000
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "after")


async def test_the_page_brings_its_policy_and_allows_nothing_inline(edge: EdgeUnderTest) -> None:
    page = await edge.http.get("/")

    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert " style=" not in page.text and "<style" not in page.text and "onclick" not in page.text
    assert re.findall(r"<script(?![^>]*\bsrc=)", page.text) == []


async def test_a_file_that_a_browser_has_is_not_sent_again(edge: EdgeUnderTest) -> None:
    first = await edge.http.get("/console/static/app.js")
    again = await edge.http.get("/console/static/app.js", headers={"if-none-match": first.headers["etag"]})
    whichever = await edge.http.get("/console/static/app.js", headers={"if-none-match": "*"})
    plain = await edge.http.get("/console/static/app.js", headers={"accept-encoding": "identity"})

    assert (first.headers["content-type"], first.headers["content-encoding"]) == (
        "text/javascript; charset=utf-8",
        "gzip",
    )
    assert (again.status_code, again.content) == (whichever.status_code, whichever.content) == (304, b"")
    assert plain.text == first.text
