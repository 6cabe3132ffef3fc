"""Remove the object store of a real frontdoor, and kill the frontdoor during its absence."""

import os

import pytest

from lab.fixtures.frontdoor_suite import until
from pentimento.clients.image import ImageClient
from pentimento.domain.generation import InitImage
from pentimento.domain.image_request import Accepted, Completed, ImageRequest
from tests.faults.frontdoor.processes import Processes, kill, serving
from tests.integration.frontdoor.inputs import png

pytestmark = pytest.mark.faults

REQUEST = ImageRequest(prompt="a red circle", num_inference_steps=5, seed=1)


async def test_image_without_store_survives_kill_and_is_stored_later(running: Processes, client: ImageClient) -> None:
    objects = running.folder / "objects"
    running.worker("w1", step_s=0.005)
    frontdoor = running.frontdoor("w1")
    await serving(running.address("f"))
    objects.rename(running.folder / "unmounted")
    objects.write_bytes(b"")

    *_, completed = [event async for event in client.generate(REQUEST, "key")]
    assert isinstance(completed, Completed)
    kill(frontdoor)
    running.frontdoor("w1")
    await serving(running.address("f"))
    while_away = await client.get_request(completed.request_id)
    objects.unlink()
    (running.folder / "unmounted").rename(objects)
    await until(lambda: bool(list(objects.rglob("results.*"))))

    assert while_away.completed == completed
    assert (await client.get_request(completed.request_id)).completed == completed


async def test_images_of_accepted_requests_survive_a_kill_and_go_when_these_have_ended(
    running: Processes, client: ImageClient
) -> None:
    request = ImageRequest("x", num_inference_steps=20, init_image=InitImage(png() + os.urandom(1 << 20), 0.5))
    # None completes before the kill, even if this process pauses.
    worker = running.worker("w1", step_s=5.0)
    frontdoor = running.frontdoor("w1")
    await serving(running.address("f"))
    streams = {f"key-{number}": client.generate(request, f"key-{number}") for number in range(4)}
    for stream in streams.values():
        assert isinstance(await anext(stream), Accepted)
    journal_bytes = sum(file.stat().st_size for file in running.folder.glob("journal.sqlite*"))
    stored = list((running.folder / "objects").rglob("inputs.*"))

    kill(frontdoor)
    kill(worker)
    running.worker("w1", step_s=0.01)
    running.frontdoor("w1")
    await serving(running.address("f"))
    ends = [[event async for event in client.generate(request, key)][-1] for key in streams]

    assert all(isinstance(end, Completed) for end in ends)
    assert (len(stored), journal_bytes < 1 << 20) == (1, True)
    await until(lambda: not list((running.folder / "objects").rglob("inputs.*")))
