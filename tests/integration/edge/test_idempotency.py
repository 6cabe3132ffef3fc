"""Test that a key finds the first request from any call, and is refused with another body."""

from typing import Any

import httpx
import pytest

from tests.integration.edge.conftest import EdgeUnderTest
from tests.integration.frontdoor.inputs import png

ASKED = {"prompt": "a red circle", "num_inference_steps": 1, "seed": 1}
KEY = {"Idempotency-Key": "k"}
IMAGE, MASK = png("red"), png("white")


def edit(image: bytes = IMAGE, mask: bytes = MASK, **values: str) -> dict[str, Any]:
    return {"data": {"prompt": "x", "seed": "1", **values}, "files": {"image": image, "mask": mask}}


# For each call: its arguments, arguments for the same request, and arguments for other requests.
CALLS: dict[str, tuple[dict[str, Any], tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]] = {
    "/v1/images/generations": (
        {"json": ASKED},
        ({"json": {**ASKED, "n": 1}}, {"json": {**ASKED, "user": "somebody", "response_format": "b64_json"}}),
        ({"json": {**ASKED, "seed": 2}}, {"json": {**ASKED, "n": 2}}, {"json": {**ASKED, "cache": "off"}}),
    ),
    "/v1/images/edits": (
        edit(),
        (edit(user="somebody"), edit(stream="true")),
        (edit(image=png("blue")), edit(mask=png("black")), edit(strength="0.5")),
    ),
    "/v1/jobs": (
        {"json": ASKED},
        ({"json": {**ASKED, "provenance": True}},),
        ({"json": {**ASKED, "prompt": "x"}}, {"json": {**ASKED, "output_format": "webp"}}),
    ),
}


@pytest.mark.parametrize("path", CALLS)
async def test_a_key_is_of_one_request(edge: EdgeUnderTest, path: str) -> None:
    first, same, others = CALLS[path]

    async def ask(sent: dict[str, Any]) -> httpx.Response:
        return await edge.http.post(path, headers=KEY, **sent)

    began = await ask(first)
    request_id = request_of(began)
    again = [await ask(sent) for sent in (first, *same)]
    refused = [await ask(sent) for sent in others]

    assert began.is_success
    assert [request_of(answer) for answer in again] == [request_id] * (1 + len(same))
    assert {(answer.status_code, answer.json()["error"]["type"]) for answer in refused} == {(409, "conflict_error")}
    assert {answer.headers["x-should-retry"] for answer in refused} == {"false"}
    assert len({request_of(answer) for answer in refused} - {None}) == 0
    listed = (await edge.http.get("/v1/jobs?jobs_only=false")).json()["data"]
    assert [job["id"] for job in listed] == [request_id]


def request_of(answer: httpx.Response) -> str | None:
    """Return the id of an accepted call, or None."""
    if answer.status_code == 202:
        return str(answer.json()["id"])
    return answer.headers.get("x-request-id")
