"""Test foreign pages that an operator allows: their browsers' preflight requests, and the answers that scripts may
read."""

from typing import Any

import httpx
import pytest

from tests.integration.edge.conftest import EdgeUnderTest

PAGE = "https://app.example"
# Headers that OpenAI's JavaScript client sends from a page, in a browser's order.
SENT = ["authorization", "content-type", "idempotency-key"] + [
    f"x-stainless-{name}"
    for name in ("arch", "lang", "os", "package-version", "retry-count", "runtime", "runtime-version", "timeout")
]


@pytest.fixture
def limits() -> dict[str, Any]:
    return {"allowed_origins": (PAGE,)}


def listed(answer: httpx.Response, name: str) -> set[str]:
    return {word.strip().lower() for word in answer.headers.get(name, "").split(",")}


async def test_allowed_page_may_send_headers_of_openai_client(edge: EdgeUnderTest) -> None:
    headers = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ",".join(SENT),
    }

    answer = await edge.http.options("/v1/images/generations", headers=headers)

    allowed = listed(answer, "access-control-allow-headers")
    # By the Fetch standard `*` covers every header except this one.
    assert "authorization" in allowed
    assert [name for name in SENT if name not in allowed and "*" not in allowed] == []
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, PAGE)
    assert listed(answer, "access-control-allow-methods") == {"get", "post"}


async def test_allowed_page_reads_retry_time_and_answer(edge: EdgeUnderTest) -> None:
    asked = {"prompt": "a red circle", "num_inference_steps": 1}

    answer = await edge.http.post("/v1/jobs", json=asked, headers={"Origin": PAGE})

    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (202, PAGE)
    assert listed(answer, "access-control-expose-headers") == {
        "location",
        "retry-after",
        "x-request-id",
        "x-should-retry",
    }


async def test_requests_without_origin_get_no_cors_headers(edge: EdgeUnderTest) -> None:
    answer = await edge.generate(num_inference_steps=1)

    assert [name for name in answer.headers if name.startswith("access-control")] == []


async def test_cached_answer_to_element_is_not_reused_for_script(edge: EdgeUnderTest) -> None:
    """`<img>` requests a URL without an origin. A later script of the same page would get the cached answer, which
    forbids every script to read it."""
    asked = {"prompt": "a red circle", "num_inference_steps": 1, "response_format": "url"}
    url = (await edge.http.post("/v1/images/generations", json=asked)).json()["data"][0]["url"]

    shown, read = await edge.http.get(url), await edge.http.get(url, headers={"Origin": PAGE})
    page = await edge.http.get("/")

    assert (shown.status_code, "access-control-allow-origin" in shown.headers) == (200, False)
    assert read.headers["access-control-allow-origin"] == PAGE
    assert "max-age" in shown.headers["cache-control"]
    for answer in (shown, read, page):
        assert "origin" in listed(answer, "vary")
    assert "accept-encoding" in listed(page, "vary")
