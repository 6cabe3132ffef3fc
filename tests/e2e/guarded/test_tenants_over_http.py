"""Test two tenants that send equal requests over HTTP to one cache: neither gets the other's data."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.e2e.guarded.conftest import Guarded
from tests.support.edge_packages import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")
# Without guidance, one worker generates each image.
ASKED = {"prompt": "a tiny green star in a meadow", "num_inference_steps": 12, "guidance_scale": 1.0}
GUARD_S = 120
FROM_NOISE = {"kind": "FromNoise"}


@dataclass
class Caller:
    """Call HTTP as one tenant's user. `ids` holds the request of every image that it received."""

    http: httpx.AsyncClient
    ids: set[str] = field(default_factory=set)

    async def generate(self, **values: Any) -> dict[str, Any]:
        """Generate an image and return its start."""
        answer = await self.http.post("/v1/images/generations", json={**ASKED, "provenance": True, **values})
        assert answer.status_code == 200, answer.text
        (image,) = answer.json()["data"]
        return self._start(image)

    async def generate_streamed(self) -> dict[str, Any]:
        asked = {**ASKED, "provenance": True, "cache": "read", "stream": True}
        answer = await self.http.post("/v1/images/generations", json=asked)
        return self._start(json.loads(answer.text.rstrip().rpartition("data: ")[2]))

    async def generate_in_a_job(self) -> dict[str, Any]:
        job = (await self.http.post("/v1/jobs", json={**ASKED, "provenance": True, "cache": "read"})).json()
        await self.http.get(f"/v1/jobs/{job['id']}/events")
        (image,) = (await self.http.get(job["result"])).json()["data"]
        return self._start(image)

    async def generate_in_the_console(self) -> dict[str, Any]:
        answer = await self.http.post("/console/data/generate", json={**ASKED, "cache": "read"})
        return self._start(json.loads(answer.text.rstrip().rpartition("data: ")[2]))

    async def until_hit(self) -> dict[str, Any]:
        """Repeat the request until it hits: an entry is committed after its image was answered."""
        async with asyncio.timeout(GUARD_S):
            while (start := await self.generate(cache="tenant")) == FROM_NOISE:
                pass
        return start

    async def near(self) -> tuple[Any, Any]:
        """Return the neighbours that the console shows, and the predicted start."""
        asked = {**ASKED, "neighbour_count": 5}
        told = (await self.http.post("/console/data/explain", json=asked)).json()
        return told["neighbours"], told["route"]["start"]

    async def listed(self) -> set[str]:
        pages = (await self.http.get("/v1/jobs?jobs_only=false&limit=200")).json()
        return {one["id"] for one in pages["data"]}

    def _start(self, image: dict[str, Any]) -> dict[str, Any]:
        self.ids.add(image["request_id"])
        return dict(image["provenance"]["route"]["start"])


@pytest.fixture
async def callers(guarded: Guarded) -> AsyncIterator[tuple[Caller, Caller]]:
    url = f"http://{guarded.suite.endpoint.http}"
    headers = [{"Authorization": f"Bearer {token}"} for token in (guarded.user, guarded.other_user)]
    async with (
        httpx.AsyncClient(base_url=url, timeout=GUARD_S, headers=headers[0]) as one,
        httpx.AsyncClient(base_url=url, timeout=GUARD_S, headers=headers[1]) as other,
    ):
        yield Caller(one), Caller(other)


async def test_equal_prompts_of_two_tenants_share_no_entry(callers: tuple[Caller, Caller]) -> None:
    one, other = callers
    first = await one.until_hit()
    # A gateway without a processor does not answer in time.
    async with asyncio.timeout(GUARD_S):
        while not (await one.near())[0]:
            pass

    # Every way to send the request, and every cache mode.
    assert await other.near() == ([], FROM_NOISE)
    starts = [await other.generate(cache=word) for word in ("off", "read", "shared")]
    starts += [await other.generate_streamed(), await other.generate_in_a_job(), await other.generate_in_the_console()]
    assert starts == [FROM_NOISE] * 6

    # With entries of both tenants, each starts from its own.
    second = await other.until_hit()
    third = await one.until_hit()
    assert first["donor"]["request_id"] in one.ids and third["donor"]["request_id"] in one.ids
    assert second["donor"]["request_id"] in other.ids
    assert second["donor"]["entry_id"] not in (first["donor"]["entry_id"], third["donor"]["entry_id"])
    assert not one.ids & other.ids
    assert one.ids <= await one.listed() and not one.ids & await other.listed()
