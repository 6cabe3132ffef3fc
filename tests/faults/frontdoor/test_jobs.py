"""Test jobs after their client and frontdoor processes were killed by SIGKILL."""

import asyncio

import pytest

from lab.fixtures.paced_worker import image_of
from pentimento.clients.image import ImageClient
from pentimento.domain.image_request import Accepted, Completed, ImageRequest
from pentimento.domain.jobs import RequestQuery, RequestState
from pentimento.rpc import RpcChannelSettings, open_channel
from tests.faults.frontdoor.processes import Processes, kill, serving
from tests.support.calls import last_completed

pytestmark = pytest.mark.faults

REQUEST = ImageRequest(prompt="a red circle", num_inference_steps=30, seed=1)


async def test_queued_and_running_jobs_end_after_restart_for_another_client(
    running: Processes, client: ImageClient
) -> None:
    running.worker("w1", step_s=0.01)
    first = running.frontdoor("w1")
    await serving(running.address("f"))
    submitted = [(await client.submit(REQUEST, f"key-{number}")).request_id for number in range(6)]
    stream = client.attach(submitted[0])
    assert await anext(stream) == Accepted(submitted[0], replayed=True)
    await stream.aclose()

    kill(first)
    running.frontdoor("w1")
    await serving(running.address("f"))

    async with open_channel(running.address("f"), RpcChannelSettings()) as channel:
        other = ImageClient(channel)
        heard = await asyncio.gather(*(last_of(other, request_id) for request_id in submitted))
        listed = (await other.list_requests(RequestQuery(jobs_only=True))).requests
        again = await other.submit(REQUEST, "key-0")
    assert [completed.image == image_of(completed.provenance.spec) for completed in heard] == [True] * 6
    assert {one.request_id: one.state for one in listed} == dict.fromkeys(submitted, RequestState.COMPLETED)
    assert again == Accepted(submitted[0], replayed=True)


async def last_of(client: ImageClient, request_id: str) -> Completed:
    return await last_completed(client.attach(request_id))
