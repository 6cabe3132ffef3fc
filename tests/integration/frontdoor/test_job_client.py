"""Test jobs with the SDK and the command, over a frontdoor with a real socket."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker, image_of
from pentimento.cli import cli
from pentimento.domain.errors import Cancelled, FailedPrecondition, InvalidArgument, Unavailable
from pentimento.domain.image_request import RequestStatus
from pentimento.domain.jobs import RequestState
from pentimento.sdk import AsyncClient, Client, RequestQuery, RetryPolicy

PATIENT = RetryPolicy(tries=1000, first_pause_s=0.01, max_pause_s=0.05)


async def test_a_job_is_submitted_waited_for_and_fetched_again(suite: FrontdoorSuite) -> None:
    async with AsyncClient(f"unix:{suite.folder / 'f'}") as client:
        accepted = await client.submit(REQUEST, idempotency_key="key")
        image = await client.wait(accepted.request_id)
        again = await client.result(accepted.request_id)
        (listed,) = [job async for job in client.jobs()]
        failed = [job async for job in client.jobs(RequestState.FAILED, RequestState.CANCELLED)]

    assert image.data == again.data == image_of(image.provenance.spec)
    assert (listed.request_id, listed.state) == (accepted.request_id, RequestState.COMPLETED)
    assert failed == []


async def test_every_job_is_listed_however_many_pages_they_fill(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with AsyncClient(f"unix:{suite.folder / 'f'}") as client:
        submitted = [(await client.submit(REQUEST)).request_id for _ in range(53)]
        listed = [job.request_id async for job in client.jobs()]

    assert listed == submitted[::-1]


async def test_job_without_result_reports_the_reason(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with AsyncClient(f"unix:{suite.folder / 'f'}") as client:
        request_id = (await client.submit(REQUEST)).request_id
        await worker.wait_until(lambda: worker.running)
        with pytest.raises(FailedPrecondition, match="it is running"):
            await client.result(request_id)
        await client.cancel(request_id)
        with pytest.raises(FailedPrecondition, match="it is cancelled"):
            await client.result(request_id)
        with pytest.raises(Cancelled):
            await client.wait(request_id)


async def test_waiting_client_survives_kill_of_frontdoor(folder: Path, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with AsyncClient(f"unix:{folder / 'f'}", retries=PATIENT) as client:
        async with running_suite(folder):
            request_id = (await client.submit(REQUEST)).request_id
            await worker.wait_until(lambda: worker.running)
            waiting = asyncio.ensure_future(client.wait(request_id))
            await client.get_request(request_id)
        async with running_suite(folder):
            worker.hold.set()
            image = await waiting

    assert image.data == image_of(image.provenance.spec)
    assert len(worker.executed) == 1


async def test_request_with_lost_controlnet_is_unavailable_after_one_call(
    suite: FrontdoorSuite, worker: PacedWorker
) -> None:
    worker.fail_with = Unavailable("CONTROLNET_LOST", "no replica serves it")
    async with AsyncClient(f"unix:{suite.folder / 'f'}") as client:
        with pytest.raises(Unavailable) as ended:
            await client.generate(REQUEST)
        (listed,) = (await client.list_requests()).requests
        with pytest.raises(Unavailable) as told_later:
            await client.wait(listed.request_id)

    assert (ended.value.reason, told_later.value.reason) == ("CONTROLNET_LOST", "CONTROLNET_LOST")


async def test_the_client_without_asyncio_does_the_same(suite: FrontdoorSuite) -> None:
    def play() -> tuple[bytes, list[str], int]:
        with Client(f"unix:{suite.folder / 'f'}") as client:
            request_id = client.submit(REQUEST).request_id
            image = client.wait(request_id)
            listed = [job.request_id for job in client.jobs(RequestState.COMPLETED)]
            assert listed == [request_id]
            assert client.result(request_id).data == image.data
            kinds = [type(event).__name__ for event in client.attach(request_id)]
            return image.data, kinds, len(client.list_requests(RequestQuery(jobs_only=True)).requests)

    data, kinds, count = await asyncio.to_thread(play)

    assert data
    assert (kinds, count) == (["Accepted", "Routed", "Completed"], 1)


async def test_a_job_of_several_is_waited_for_as_such(suite: FrontdoorSuite) -> None:
    several = replace(REQUEST, image_count=3)
    async with AsyncClient(f"unix:{suite.folder / 'f'}") as client:
        accepted = await client.submit(several)
        found = await client.wait_all(accepted.request_id)
        with pytest.raises(InvalidArgument, match="wait_all has several"):
            await client.wait(accepted.request_id)
        one = await client.wait(accepted.image_request_ids[1])

    assert found.request_id == accepted.request_id
    assert [image.provenance.request_id for image in found.images] == list(accepted.image_request_ids)
    assert one.data == found.images[1].data


async def test_the_command_saves_each_of_several(suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(suite.folder)
    accepted = await suite.client.submit(replace(REQUEST, image_count=2))

    waited = await command(suite, "wait", accepted.request_id, "--json")
    named = await command(suite, "wait", accepted.request_id, "-o", "one.png")

    ids = accepted.image_request_ids
    assert [json.loads(line) for line in waited.stdout.splitlines()] == [
        {"request_id": one, "file": f"{one}.png"} for one in ids
    ]
    assert all((suite.folder / f"{one}.png").stat().st_size for one in ids)
    assert (named.exit_code, "--output is for one image" in named.output) == (2, True)


async def command(suite: FrontdoorSuite, *words: str) -> Result:
    arguments = ["jobs", *words, "--address", f"unix:{suite.folder / 'f'}"]
    return await asyncio.to_thread(lambda: CliRunner().invoke(cli, arguments, catch_exceptions=False))


async def told(suite: FrontdoorSuite, *words: str) -> Any:
    return json.loads((await command(suite, *words, "--json")).stdout)


async def test_the_command_submits_waits_and_shows(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    submit = ("submit", "a red circle", "--steps", "3", "--seed", "1", "--idempotency-key", "key")
    request_id = (await command(suite, *submit)).stdout.strip()
    again = await told(suite, *submit)
    await worker.wait_until(lambda: worker.running)
    running = await told(suite, "show", request_id)
    worker.hold.set()
    target = suite.folder / "circle.png"
    waited = await command(suite, "wait", request_id, "-o", str(target))
    listed = (await command(suite, "list", "--state", "completed")).stdout

    assert again == {"request_id": request_id, "replayed": True}
    assert (running["state"], running["job"], running["idempotency_key"]) == ("running", True, "key")
    assert waited.exit_code == 0
    assert target.stat().st_size > 0
    assert listed.startswith(f"{request_id}  completed ")
    assert "kept until" in (await command(suite, "show", request_id)).stdout


async def test_the_command_waits_for_a_frontdoor_that_takes_a_while_to_start_again(
    suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frontdoor is also called while it is down."""
    request_id = (await told(suite, "submit", "a red circle", "--steps", "3"))["request_id"]
    asks, get_request = RetryPolicy().tries, suite.frontdoor.api.tenants.get_request
    monkeypatch.setattr(RetryPolicy, "pause_s", lambda *_: 0.001)

    async def away_at_first(*asked: Any) -> RequestStatus:
        nonlocal asks
        if asks:
            asks -= 1
            raise Unavailable("DOWN", "down")
        return await get_request(*asked)

    monkeypatch.setattr(suite.frontdoor.api.tenants, "get_request", away_at_first)
    waited = await command(suite, "wait", request_id, "-o", str(suite.folder / "circle.png"))

    assert (waited.exit_code, (suite.folder / "circle.png").stat().st_size > 0) == (0, True)


async def test_the_command_cancels(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    request_id = (await told(suite, "submit", "a red circle", "--steps", "3"))["request_id"]

    assert (await command(suite, "cancel", request_id)).stdout == "cancelled\n"
    assert (await told(suite, "list", "--limit", "1"))["state"] == "cancelled"
