"""The console's pages and data over HTTP, without a browser: a real edge before a real frontdoor."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from lab.fixtures.paced_worker import image_of
from pentimento.domain.generation import InitImage
from pentimento.domain.requests import RequestState
from tests.integration.edge.conftest import IN_A_SHARED_LOOP, EdgeUnderTest
from tests.support.images import a_png

DATA = "/console/data"
PAINT = {"prompt": "a red circle", "num_inference_steps": 4, "seed": 5, "preview_every_steps": 2}


@asynccontextmanager
async def painting(edge: EdgeUnderTest, path: str = "generate", **values: Any) -> AsyncIterator[AsyncIterator[Any]]:
    """The events of a picture, as (name, values)."""
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


async def paint(edge: EdgeUnderTest, path: str = "generate", **values: Any) -> list[Any]:
    async with painting(edge, path, **values) as events:
        return [event async for event in events]


async def test_events_tell_all_that_is_known_of_a_picture(edge: EdgeUnderTest) -> None:
    events = await paint(edge)

    names = [name for name, _ in events]
    assert (names[:2], names[-1]) == (["accepted", "routed"], "completed")
    # A worker that is quick enough tells of no step on the way.
    assert set(names[2:-1]) <= {"progress"}
    completed = events[-1][1]
    assert base64.b64decode(completed["image"]) == image_of(edge.worker.executed[0])
    assert completed["request_id"] == events[0][1]["request_id"] == completed["provenance"]["request_id"]
    assert completed["provenance"]["route"]["start"] == {"kind": "FromNoise"}
    assert events[1][1]["route"]["start"] == {"kind": "FromNoise"}
    assert edge.worker.executed[0].seed == 5


async def test_a_finished_picture_is_read_by_its_id(edge: EdgeUnderTest) -> None:
    completed = (await paint(edge))[-1][1]

    told = await edge.http.get(f"{DATA}/requests/{completed['request_id']}")
    image = await edge.http.get(f"{DATA}/requests/{completed['request_id']}/image")
    unknown = await edge.http.get(f"{DATA}/requests/r-none")

    assert told.json()["provenance"] == completed["provenance"]
    assert (image.headers["content-type"], image.headers["cache-control"]) == ("image/png", "no-store")
    assert image.content == base64.b64decode(completed["image"])
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "UNKNOWN_REQUEST")


async def test_finished_pictures_are_listed_newest_first_a_page_at_a_time(edge: EdgeUnderTest) -> None:
    ids = [(await paint(edge))[-1][1]["request_id"] for _ in range(3)]

    first = (await edge.http.get(f"{DATA}/requests?page_size=2")).json()
    rest = (await edge.http.get(f"{DATA}/requests", params={"page_token": first["next_page_token"]})).json()
    wrong = await edge.http.get(f"{DATA}/requests?page_size=-1")

    assert (await edge.http.get(f"{DATA}/deployment")).json()["features"]["listing"]
    assert [one["request_id"] for one in (*first["requests"], *rest["requests"])] == ids[::-1]
    assert (len(first["requests"]), rest["next_page_token"]) == (2, "")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "page_size")


async def test_who_leaves_frees_the_worker(edge: EdgeUnderTest) -> None:
    edge.worker.hold.clear()
    async with painting(edge) as events:
        _, accepted = await anext(events)
        await edge.worker.wait_until(lambda: edge.worker.running)

    async with asyncio.timeout(60):
        await edge.worker.wait_until(lambda: not edge.worker.running)
    assert (await edge.suite.client.get_request(accepted["request_id"])).state is RequestState.CANCELLED


async def test_a_picture_is_painted_again(edge: EdgeUnderTest) -> None:
    first = (await paint(edge))[-1][1]

    again = (await paint(edge, "replay", request_id=first["request_id"], preview_every_steps=0))[-1][1]

    assert (again["image"], again["provenance"]["replay_equal"]) == (first["image"], True)


async def test_several_pictures_are_told_of_each_by_itself(edge: EdgeUnderTest) -> None:
    events = await paint(edge, **PAINT, n=3)

    accepted = events[0][1]
    completed = sorted((values for name, values in events if name == "completed"), key=lambda one: one["image_index"])
    assert [one["request_id"] for one in completed] == accepted["image_request_ids"]
    assert [one["provenance"]["spec"]["seed"] for one in completed] == ["5", "6", "7"]
    assert len({one["image"] for one in completed}) == 3
    assert {values["image_index"] for name, values in events if name == "routed"} == {0, 1, 2}


async def test_one_of_several_that_fails_is_told_and_the_others_come(edge: EdgeUnderTest) -> None:
    edge.worker.hold.clear()
    async with painting(edge, **PAINT, n=2) as events:
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

    first = (await paint(edge, **PAINT, **sent, strength=0.5, size="32x32"))[-1][1]
    inputs = [{"field": f"init_image.{name}", "data": data} for name, data in sent.items()]
    again = (await paint(edge, "replay", request_id=first["request_id"], inputs=inputs))[-1][1]

    assert [spec.init_image for spec in edge.worker.executed] == [InitImage(image, 0.5, mask)] * 2
    assert again["image"] == first["image"]


async def test_a_picture_that_fails_ends_its_stream_with_the_error(edge: EdgeUnderTest) -> None:
    edge.worker.hold.clear()
    async with painting(edge) as events:
        _, accepted = await anext(events)
        await edge.worker.wait_until(lambda: edge.worker.running)
        await edge.suite.client.cancel(accepted["request_id"])
        last = [event async for event in events][-1]

    assert (last[0], last[1]["error"]["type"]) == ("error", "request_cancelled")


@pytest.mark.parametrize("seed", [2**64 - 1, str(2**64 - 1)])
async def test_a_seed_that_browsers_would_round_comes_and_goes_as_text(edge: EdgeUnderTest, seed: object) -> None:
    events = await paint(edge, **{**PAINT, "seed": seed})

    assert [spec.seed for spec in edge.worker.executed] == [2**64 - 1]
    assert events[-1][1]["provenance"]["spec"]["seed"] == "18446744073709551615"


@IN_A_SHARED_LOOP
@pytest.mark.parametrize("seed", ["", "x", "-1", "1.0", str(2**64), "9" * 21])
async def test_a_text_that_is_no_seed_is_refused_by_name(shared_edge: EdgeUnderTest, seed: str) -> None:
    answer = await shared_edge.http.post(f"{DATA}/generate", json={**PAINT, "seed": seed})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "seed")


async def test_the_deployment_says_what_it_has(edge: EdgeUnderTest) -> None:
    told = (await edge.http.get(f"{DATA}/deployment")).json()

    assert [model["name"] for model in told["models"]] == [edge.worker.held.model]
    # This edge was told of neither a gateway nor a controller.
    assert (told["features"]["cache"], told["features"]["controller"]) == (False, False)
    access = (await edge.http.get(f"{DATA}/access")).json()
    assert access == {"tokens": False, "images": True, "suite": False}


async def test_status_has_the_frontdoors_part_and_what_charts_are_made_of(edge: EdgeUnderTest) -> None:
    await paint(edge)

    status = (await edge.http.get(f"{DATA}/status")).json()

    assert (status["fleet"], status["cache"], status["unanswered"]) == (None, None, {})
    assert status["frontdoor"]["completed_count"] == "1"
    assert status["frontdoor"]["starts"] == [{"kind": "noise", "image_count": "1"}]
    assert status["frontdoor"]["latencies"][-1]["upper_bound_s"] == "Infinity"


async def test_charts_begin_before_anybody_looked(edge: EdgeUnderTest) -> None:
    assert edge.history is not None
    before = (await edge.http.get(f"{DATA}/history")).json()["samples"]
    await paint(edge)
    await edge.history.look()

    told = (await edge.http.get(f"{DATA}/history", params={"after": before[-1]["at"]})).json()
    wrong = await edge.http.get(f"{DATA}/history?after=now")

    assert told["samples"][-1] in json.loads(edge.history.ring.after(before[-1]["at"]))
    assert (told["samples"][-1]["completed"], told["samples"][-1]["starts"]) == (1, [["noise", 0, 1]])
    assert told["interval_ms"] == 5000
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "after")


async def test_what_would_be_decided_is_told(edge: EdgeUnderTest) -> None:
    body = {"prompt": "a red circle", "neighbour_count": 5}

    told = (await edge.http.post(f"{DATA}/explain", json=body)).json()

    assert (told["route"]["start"], told["neighbours"]) == ({"kind": "FromNoise"}, [])
    assert told["route"]["model"] == edge.worker.held.model
    assert edge.worker.executed == []


@IN_A_SHARED_LOOP
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("generate", {}, "prompt"),
        ("generate", {"prompt": "x", "preview_every_steps": -1}, "preview_every_steps"),
        ("generate", {"prompt": "x", "image": "*"}, "image"),
        ("generate", {"prompt": "x", "neighbour_count": 1}, "neighbour_count"),
        ("generate", {"prompt": "x", "n": 11}, "n"),
        ("generate", {"prompt": "x", "mask": ""}, "mask"),
        ("explain", {"prompt": "x", "n": 2}, "n"),
        ("explain", {"prompt": "x", "neighbour_count": 51}, "neighbour_count"),
        ("replay", {}, "request_id"),
        ("replay", {"request_id": "r", "inputs": [{"field": "init_image.image", "data": "*"}]}, "inputs[0].data"),
    ],
)
async def test_a_wrong_field_is_named(shared_edge: EdgeUnderTest, path: str, body: dict[str, Any], field: str) -> None:
    answer = await shared_edge.http.post(f"{DATA}/{path}", json=body)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


@IN_A_SHARED_LOOP
@pytest.mark.parametrize("path", ["generate", "replay", "explain"])
async def test_other_pages_cannot_ask(shared_edge: EdgeUnderTest, path: str) -> None:
    body = json.dumps({"prompt": "x", "request_id": "r"})
    form = {"content-type": "text/plain"}

    foreign = await shared_edge.http.post(f"{DATA}/{path}", json={}, headers={"origin": "https://evil.example"})
    simple = await shared_edge.http.post(f"{DATA}/{path}", content=body, headers=form)
    asked_by_address = await shared_edge.http.get(f"{DATA}/{path}")

    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "WRONG_ORIGIN")
    assert (simple.status_code, simple.json()["error"]["param"]) == (400, "Content-Type")
    assert asked_by_address.status_code == 405
    for answer in (foreign, simple):
        assert "access-control-allow-origin" not in answer.headers
        assert "set-cookie" not in answer.headers
    assert shared_edge.worker.executed == []


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


@IN_A_SHARED_LOOP
@pytest.mark.parametrize("name", ["none.js", "..%2f__init__.py", "%2e%2e%2fpages.py", "index.html%00.js"])
async def test_no_other_file_is_served(shared_edge: EdgeUnderTest, name: str) -> None:
    answer = await shared_edge.http.get(f"/console/static/{name}")

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "UNKNOWN_PATH")
