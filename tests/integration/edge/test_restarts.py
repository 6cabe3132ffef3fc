"""Test that the edge's calls get their answers although the frontdoor restarts during an image."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.fixtures.frontdoor_suite import running_suite, until
from lab.fixtures.paced_worker import PacedWorker, image_of
from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.domain.errors import Cancelled, Unavailable
from pentimento.domain.jobs import RequestState
from tests.integration.frontdoor.inputs import png
from tests.integration.sdk.scripted import ACCEPTED, COMPLETED, REPLAYED, ScriptedImageService, plays, serving

ASKED = {"prompt": "a red circle", "num_inference_steps": 3, "seed": 1}
GUARD_S = 60


@asynccontextmanager
async def edge_alone(folder: Path, frontdoor_address: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an edge; tests start and stop the frontdoor."""
    from lab.fixtures.edge_suite import running_edge

    async with (
        running_edge(folder, frontdoor_address) as edge,
        httpx.AsyncClient(base_url=f"http://{edge.listener.address}", timeout=GUARD_S) as http,
    ):
        yield http


async def during_generation(
    folder: Path, worker: PacedWorker, ask: Callable[[httpx.AsyncClient], Any]
) -> tuple[httpx.Response, list[str]]:
    """Replace the frontdoor during the request of `ask`; return its answer and the ids of all requests."""
    worker.hold.clear()
    async with asyncio.timeout(GUARD_S), edge_alone(folder, f"unix:{folder / 'f'}") as http:
        async with running_suite(folder):
            asked = asyncio.ensure_future(ask(http))
            await worker.wait_until(lambda: worker.running)
        async with running_suite(folder):
            worker.hold.set()
            answer = await asked
            listed = (await http.get("/v1/jobs?jobs_only=false")).json()["data"]
    return answer, [job["id"] for job in listed]


async def test_image_without_key_comes_from_the_next_frontdoor(folder: Path, worker: PacedWorker) -> None:
    answer, ids = await during_generation(folder, worker, lambda http: http.post("/v1/images/generations", json=ASKED))

    (spec,) = worker.executed
    assert answer.status_code == 200
    assert base64.b64decode(answer.json()["data"][0]["b64_json"]) == image_of(spec)
    assert ids == [answer.headers["x-request-id"]]


@pytest.mark.parametrize(
    ("path", "sent", "last"),
    [
        ("/v1/images/generations", {"json": {**ASKED, "stream": True}}, "image_generation.completed"),
        (
            "/v1/images/edits",
            {"data": {"prompt": "x", "stream": "true"}, "files": {"image": png()}},
            "image_edit.completed",
        ),
        ("/console/data/generate", {"json": {"prompt": "x"}}, "completed"),
    ],
)
async def test_stream_without_key_continues_after_restart(
    folder: Path, worker: PacedWorker, path: str, sent: dict[str, Any], last: str
) -> None:
    answer, ids = await during_generation(folder, worker, lambda http: http.post(path, **sent))

    told = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert (told[-1], told.count("accepted") <= 1, "error" in told) == (last, True, False)
    assert (len(ids), len(worker.executed)) == (1, 1)


async def test_several_images_arrive_once_each(folder: Path, worker: PacedWorker) -> None:
    answer, ids = await during_generation(
        folder, worker, lambda http: http.post("/v1/images/generations", json={**ASKED, "n": 2})
    )

    images = [base64.b64decode(one["b64_json"]) for one in answer.json()["data"]]
    assert images == [image_of(spec) for spec in sorted(worker.executed, key=lambda spec: spec.seed)]
    assert sorted(ids) == [f"{answer.headers['x-request-id']}-{index}" for index in (0, 1)]


async def test_client_leaving_after_restart_cancels_its_request(folder: Path, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with asyncio.timeout(GUARD_S), edge_alone(folder, f"unix:{folder / 'f'}") as http:
        async with running_suite(folder):
            asked = asyncio.ensure_future(http.post("/v1/images/generations", json=ASKED))
            await worker.wait_until(lambda: worker.running)
        async with running_suite(folder) as suite:
            jobs = suite.frontdoor.jobs
            await until(lambda: any(job.audience.listeners for job in jobs))
            (job,) = jobs
            asked.cancel()
            await job.ended.wait()
            status = await suite.client.get_request(job.request.request_id)

    assert status.state is RequestState.CANCELLED


class ScriptedAttachments(ScriptedImageService):
    """Play scripts for Attach, too; `attached` holds the requested ids."""

    def __init__(self, *scripts: Any) -> None:
        super().__init__(list(scripts))
        self.attached: list[str] = []

    async def Attach(  # type: ignore[override]
        self, request: pb.AttachRequest, context: object
    ) -> AsyncIterator[pb.GenerateResponse]:
        self.attached.append(request.request_id)
        async for event in self.scripts.pop(0)():
            yield event


AWAY = Unavailable("DOWN", "down")


async def asked_of(service: ScriptedAttachments, folder: Path, **values: Any) -> httpx.Response:
    async with asyncio.timeout(GUARD_S), serving(service, folder) as address, edge_alone(folder, address) as http:
        return await http.post("/v1/images/generations", json={**ASKED, **values})


async def test_unaccepted_call_is_answered_503_without_retry(folder: Path) -> None:
    service = ScriptedAttachments(plays(then=AWAY))

    answer = await asked_of(service, folder)

    assert (answer.status_code, answer.headers["retry-after"], service.keys) == (503, "1", [""])


async def test_answered_call_gets_no_idempotency_key(folder: Path) -> None:
    service = ScriptedAttachments(plays(ACCEPTED, COMPLETED))

    answer = await asked_of(service, folder)

    assert (answer.status_code, service.keys, service.attached) == (200, [""], [])


async def test_request_cancelled_by_broken_connection_is_sent_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.edge.api.images.RETRIES", quick())
    gone = plays(REPLAYED, then=Cancelled("CLIENT_LEFT", "cancelled because its client went away"))
    anew = pb.GenerateResponse(accepted=pb.Accepted(request_id="request-2"))
    again = plays(anew, then=AWAY)
    service = ScriptedAttachments(plays(ACCEPTED, then=AWAY), gone, again, plays(anew, COMPLETED))

    answer = await asked_of(service, folder, deadline_ms=60_000)

    assert (answer.status_code, answer.headers["x-request-id"]) == (200, "request-2")
    assert service.attached == ["request-1", "request-2"]
    first, second = service.keys
    assert first == "" and second
    assert service.deadlines_ms[1] <= service.deadlines_ms[0] == 60_000


async def test_wait_for_frontdoor_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.edge.api.images.RETRIES", quick())
    service = ScriptedAttachments(plays(ACCEPTED, then=AWAY), *[plays(then=AWAY)] * 9)

    answer = await asked_of(service, folder)

    assert (answer.status_code, json.loads(answer.content)["error"]["code"]) == (503, "DOWN")
    assert service.attached == ["request-1"] * 3


def quick() -> Any:
    from services.edge.api.images import AcceptedRetries

    return AcceptedRetries(tries=3, first_pause_s=0.001, max_pause_s=0.002, accepted_tries=4)
