"""Pages of others that an operator allows: what their browsers ask before, and what their scripts may read."""

from typing import Any

import httpx
import pytest

from tests.integration.edge.conftest import EdgeUnderTest

PAGE = "https://app.example"
# What OpenAI's JavaScript client sends from a page, as browsers ask for it.
SENT = ["authorization", "content-type", "idempotency-key"] + [
    f"x-stainless-{name}"
    for name in ("arch", "lang", "os", "package-version", "retry-count", "runtime", "runtime-version", "timeout")
]


@pytest.fixture
def limits() -> dict[str, Any]:
    return {"allowed_origins": (PAGE,)}


def listed(answer: httpx.Response, name: str) -> set[str]:
    return {word.strip().lower() for word in answer.headers.get(name, "").split(",")}


async def test_a_page_that_is_allowed_may_send_what_openais_client_sends(edge: EdgeUnderTest) -> None:
    headers = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ",".join(SENT),
    }

    answer = await edge.http.options("/v1/images/generations", headers=headers)

    allowed = listed(answer, "access-control-allow-headers")
    # By the Fetch standard `*` stands for every header but this one.
    assert "authorization" in allowed
    assert [name for name in SENT if name not in allowed and "*" not in allowed] == []
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, PAGE)
    assert listed(answer, "access-control-allow-methods") == {"get", "post"}


async def test_a_page_that_is_allowed_reads_when_to_come_back_and_what_it_got(edge: EdgeUnderTest) -> None:
    asked = {"prompt": "a red circle", "num_inference_steps": 1}

    answer = await edge.http.post("/v1/jobs", json=asked, headers={"Origin": PAGE})

    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (202, PAGE)
    assert listed(answer, "access-control-expose-headers") == {
        "location",
        "retry-after",
        "x-request-id",
        "x-should-retry",
    }


async def test_its_own_pages_and_programs_are_told_nothing_of_others(edge: EdgeUnderTest) -> None:
    answer = await edge.generate(num_inference_steps=1)

    assert [name for name in answer.headers if name.startswith("access-control")] == []


async def test_what_a_browser_keeps_of_an_element_is_not_taken_for_what_a_script_may_read(edge: EdgeUnderTest) -> None:
    """An address in `<img>` is asked for without an origin; the script of the same page that then wants the bytes would
    get that answer, which allows nobody to read it, out of the browser's cache."""
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
