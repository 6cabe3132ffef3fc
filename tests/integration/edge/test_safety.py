"""Test verdicts of classifiers over HTTP and on the console's page of an image."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.fixtures.edge_suite import running_edge
from lab.fixtures.paced_worker import PacedWorker
from tests.integration.edge.browsers import IN_A_BROWSER, console_browser, window
from tests.integration.frontdoor.test_safety import Listed, classifying, gated
from tests.support.images import a_png

SAFE = {"probability": 0.1, "limit": 0.5, "label": "nsfw", "classifier_digest": "sha256:0"}


@pytest.fixture(autouse=True)
def real_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classifiers decode what the worker sends."""
    monkeypatch.setattr("lab.fixtures.paced_worker.image_of", lambda spec: a_png())


async def test_verdicts_are_in_the_error_and_in_the_provenance(folder: Path, worker: PacedWorker) -> None:
    classifiers = {"prompt": Listed(lambda prompt: "naked" in prompt), "image": Listed(lambda _: False)}
    async with (
        classifying(folder, **classifiers) as address,
        gated(folder, address, "prompt", "image"),
        running_edge(folder, f"unix:{folder / 'f'}") as edge,
        httpx.AsyncClient(base_url=f"http://{edge.listener.address}", timeout=60) as http,
    ):
        refused = await http.post("/v1/images/generations", json={"prompt": "naked"})
        made = await http.post("/v1/images/generations", json={"prompt": "a red circle", "provenance": True})

    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "UNSAFE_PROMPT"
    assert refused.json()["error"]["safety"] == {**SAFE, "probability": 0.9}
    (image,) = made.json()["data"]
    assert (image["provenance"]["prompt_verdict"], image["provenance"]["image_verdict"]) == (SAFE, SAFE)


class TestConsole:
    pytestmark = IN_A_BROWSER

    async def test_page_of_an_image_names_its_verdicts(self, folder: Path) -> None:
        classifiers = {"prompt": Listed(lambda _: False), "image": Listed(lambda _: False)}
        async with classifying(folder, **classifiers) as address:
            checks: dict[str, Any] = {"discriminator_addresses": (address,), "safety_checks": ("prompt", "image")}
            async with (
                console_browser(**checks) as opened,
                httpx.AsyncClient(base_url=opened[1], timeout=60) as http,
                window(opened) as context,
            ):
                made = await http.post("/v1/images/generations", json={"prompt": "x", "provenance": True})
                page = await context.new_page()
                await page.goto(f"/#/image/{made.json()['data'][0]['provenance']['request_id']}")
                found = page.locator("dt", has_text="Safety").locator("xpath=following-sibling::dd[1]")

                assert await found.inner_text() == "prompt: nsfw 0.10, limit 0.5; image: nsfw 0.10, limit 0.5"
