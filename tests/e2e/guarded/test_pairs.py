"""Pictures that two workers paint, through every process: the same as one paints, and their provenance says so."""

import asyncio
import io
from collections.abc import AsyncIterator

import numpy as np
import pytest
from PIL import Image

from pentimento.domain.image_request import CacheMode, Completed, ImageRequest, Progress
from pentimento.sdk import AsyncClient, Picture
from pentimento.supervisor.leftovers import marked_processes
from tests.e2e.guarded.conftest import Guarded

STEPS = 20
# Of 255: latents differ by rounding, so a pixel may be rounded to its neighbour.
TOLERANCE = 1


@pytest.fixture
async def client(guarded: Guarded) -> AsyncIterator[AsyncClient]:
    async with guarded.client(guarded.user) as opened:
        yield opened


def request(**fields: object) -> ImageRequest:
    asked = {"num_inference_steps": STEPS, "cache": CacheMode.OFF, "seed": 7, "guidance_scale": 5.0}
    return ImageRequest("a red circle", **{**asked, **fields})  # type: ignore[arg-type]


def pixels(picture: Picture) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(Image.open(io.BytesIO(picture.data)).convert("RGB"), dtype=np.int16)


def paired(picture: Picture) -> bool:
    return any(note.startswith("painted by a pair: ") for note in picture.provenance.notes)


async def painted_by_two(client: AsyncClient) -> Picture:
    """Of two busy workers one may be too late for every step of the other, who then paints alone."""
    async with asyncio.timeout(120):
        while not paired(picture := await client.generate(request())):
            pass
    return picture


async def test_a_guided_picture_is_painted_by_both_workers_and_is_the_picture_of_one(client: AsyncClient) -> None:
    by_two = await painted_by_two(client)
    by_one = await client.replay(by_two.provenance.request_id)
    unguided = await client.generate(request(guidance_scale=1.0))

    assert not paired(by_one) and not paired(unguided)
    assert np.abs(pixels(by_two) - pixels(by_one)).max() <= TOLERANCE


@pytest.mark.faults
async def test_a_worker_that_dies_while_both_paint_costs_no_picture(client: AsyncClient, guarded: Guarded) -> None:
    wanted = await client.generate(request(num_inference_steps=200))
    workers = [one for one in marked_processes(guarded.suite.state.path) if "services.unet_worker" in one.cmdline()]
    assert len(workers) == 2
    del workers[1:]

    async for event in client.stream(request(num_inference_steps=200)):
        if isinstance(event, Progress) and workers:
            workers.pop().kill()

    assert isinstance(event, Completed)
    assert np.abs(pixels(Picture.of(event)) - pixels(wanted)).max() <= TOLERANCE
