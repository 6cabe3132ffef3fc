import asyncio
import signal
from contextlib import suppress

import pytest

from lab.fixtures.paced_worker import image_of
from pentimento.clients.image import ImageClient
from pentimento.domain.errors import PentimentoError, Unavailable
from pentimento.domain.image_request import Accepted, Completed, ImageRequest, Progress
from tests.faults.frontdoor.processes import Processes, kill, serving

pytestmark = pytest.mark.faults

REQUEST = ImageRequest(prompt="a red circle", num_inference_steps=30, seed=1)


async def test_a_worker_killed_in_the_middle_is_survived_by_its_request(
    running: Processes, client: ImageClient
) -> None:
    # An image takes a minute: it cannot complete before the kill, even if this process pauses.
    first = running.worker("w1", step_s=2.0)
    running.frontdoor("w1", "w2")
    await serving(running.address("f"))

    events = []
    async for event in client.generate(REQUEST):
        events.append(event)
        if isinstance(event, Progress) and first.poll() is None:
            running.worker("w2")
            await serving(running.address("w2"))
            kill(first)

    completed = events[-1]
    assert isinstance(completed, Completed)
    assert completed.provenance.attempt_number == 2
    assert completed.image == image_of(completed.provenance.spec)


async def test_frontdoor_killed_under_load_completes_each_request_once(running: Processes, client: ImageClient) -> None:
    running.worker("w1", step_s=0.005)
    first = running.frontdoor("w1")
    await serving(running.address("f"))
    streams = {f"key-{number}": client.generate(REQUEST, f"key-{number}") for number in range(12)}
    accepted = {key: await anext(stream) for key, stream in streams.items()}

    kill(first)
    for stream in streams.values():
        with suppress(PentimentoError):
            [event async for event in stream]
    running.frontdoor("w1")
    await serving(running.address("f"))

    for key, told in accepted.items():
        assert isinstance(told, Accepted)
        events = [event async for event in client.generate(REQUEST, key)]
        assert events[0] == Accepted(told.request_id, replayed=True)
        assert isinstance(events[-1], Completed)


async def test_sigterm_lets_accepted_requests_finish_and_takes_no_new_ones(
    running: Processes, client: ImageClient
) -> None:
    running.worker("w1")
    frontdoor = running.frontdoor("w1")
    await serving(running.address("f"))
    stream = client.generate(REQUEST)
    assert isinstance(await anext(stream), Accepted)

    frontdoor.send_signal(signal.SIGTERM)

    with pytest.raises(Unavailable):
        while True:
            async for _ in client.generate(ImageRequest("another", num_inference_steps=1)):
                pass
    assert isinstance([event async for event in stream][-1], Completed)
    assert await asyncio.to_thread(frontdoor.wait) == 0
