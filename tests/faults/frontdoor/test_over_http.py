"""Kill and restart a frontdoor under clients of HTTP."""

import asyncio
import base64
import json
import signal
from typing import Any

import httpx
import pytest

from lab.fixtures.paced_worker import image_of
from tests.faults.frontdoor.processes import Processes, kill, serving
from tests.support.edge_packages import missing

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]
ASKED = {"prompt": "a red circle", "num_inference_steps": 60, "seed": 1}
STREAMED = {**ASKED, "seed": 2, "stream": True}


async def until_state(http: httpx.AsyncClient, job: str, *states: str) -> None:
    while True:
        if (await http.get(f"/v1/jobs/{job}")).json()["status"] in states:
            return
        await asyncio.sleep(0.02)


async def until_ready(http: httpx.AsyncClient) -> None:
    while True:
        if (await http.get("/ready")).status_code == 200:
            return
        await asyncio.sleep(0.05)


async def last_event(lines: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and the values of a stream's last event."""
    told = [line async for line in lines if line]
    return told[-2].removeprefix("event: "), json.loads(told[-1].removeprefix("data: "))


async def test_killed_frontdoor_is_reported_and_loses_nothing(running: Processes) -> None:
    from lab.fixtures.edge_suite import running_edge

    worker = running.worker("w1", step_s=0.05)
    first = running.frontdoor("w1")
    await serving(running.address("f"))
    async with (
        asyncio.timeout(120),
        running_edge(running.folder, running.address("f")) as edge,
        httpx.AsyncClient(base_url=f"http://{edge.listener.address}", timeout=60) as http,
    ):
        submitted = (await http.post("/v1/jobs", json=ASKED, headers={"Idempotency-Key": "job"})).json()
        await until_state(http, submitted["id"], "running")
        # It cannot complete before the kill, even if this process pauses.
        worker.send_signal(signal.SIGSTOP)
        streamed = {"json": STREAMED, "headers": {"Idempotency-Key": "stream"}}
        async with (
            http.stream("POST", "/v1/images/generations", **streamed) as stream,  # type: ignore[arg-type]
            http.stream("GET", f"/v1/jobs/{submitted['id']}/events") as events,
        ):
            kill(first)
            worker.send_signal(signal.SIGCONT)
            told = await last_event(events.aiter_lines())
            away = [await http.post("/v1/images/generations", json=ASKED), await http.post("/v1/jobs", json=ASKED)]
            away += [await http.get(path) for path in ("/v1/models", "/v1/jobs", f"/v1/jobs/{submitted['id']}")]
            ready, health = await http.get("/ready"), await http.get("/health")

            running.frontdoor("w1")
            generated = await last_event(stream.aiter_lines())
        await until_ready(http)
        again = (await http.post("/v1/jobs", json=ASKED, headers={"Idempotency-Key": "job"})).json()
        await until_state(http, submitted["id"], "completed")
        result = (await http.get(submitted["result"])).json()
        retried = await http.post("/v1/images/generations", **streamed)  # type: ignore[arg-type]

    assert (told[0], told[1]["error"]["type"]) == ("error", "server_error")
    assert (generated[0], generated[1]["request_id"]) == ("image_generation.completed", stream.headers["x-request-id"])
    assert [(one.status_code, one.headers["retry-after"]) for one in away] == [(503, "1")] * 5
    assert (ready.status_code, ready.json(), health.status_code) == (503, {"status": "not ready"}, 200)
    assert (again["id"], again["replayed"]) == (submitted["id"], True)
    assert len(base64.b64decode(result["data"][0]["b64_json"])) == len(any_image())
    assert stream.headers.get("x-request-id") is not None
    assert retried.headers["x-request-id"] == stream.headers["x-request-id"]
    assert "image_generation.completed" in retried.text


def any_image() -> bytes:
    from pentimento.domain.generation import GenerationSpec, Scheduler

    return image_of(GenerationSpec("", "", "tiny", 32, 32, 1, 3.0, Scheduler.EULER, 1))
