"""NetworkScorer: images that wait for a pass, callers that leave, and closing."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from lab.emulation.png_text import flat_png
from pentimento.diffusion.discriminators import PictureDiscriminator
from pentimento.domain.errors import Unavailable
from pentimento.domain.reasons import Reason
from services.discriminator.network_scorer import NetworkScorer
from services.discriminator.scoring import ImageToScore
from tests.support.waiting import until

CASCADE = "light>heavy"


class HeldNetwork:
    """A network with passes that wait for `goes_on`; the confidence in an image is its red value, which is recorded."""

    def __init__(self) -> None:
        self.passes: list[list[int]] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.decodes = threading.Event()
        self.decodes.set()
        self.image_size_px = 1
        self.digest, self.head = "sha256:held", None

    def pixels(self, image: Image.Image) -> NDArray[np.float32]:
        assert self.decodes.wait(60)
        return np.asarray(image, dtype=np.float32)[:1, :1]

    def confidences(self, pixels: Sequence[NDArray[np.float32]]) -> list[float]:
        reds = [int(one[0, 0, 0]) for one in pixels]
        self.passes.append(reds)
        assert self.goes_on.wait(60)
        return [red / 255 for red in reds]


@pytest.fixture
def network() -> HeldNetwork:
    return HeldNetwork()


@pytest.fixture
async def scorer(network: HeldNetwork) -> AsyncIterator[NetworkScorer]:
    served = {CASCADE: cast("PictureDiscriminator", network)}
    scorer = NetworkScorer([CASCADE], lambda: served, 2, nullcontext, lambda seconds: None)
    await scorer.open()
    network.passes.clear()
    yield scorer
    network.goes_on.set()
    await scorer.close()


def call(scorer: NetworkScorer, *reds: int) -> "asyncio.Task[Any]":
    return asyncio.create_task(scorer.score(CASCADE, [ImageToScore(flat_png(1, 1, (red, 0, 0))) for red in reds]))


def waiting_count(scorer: NetworkScorer) -> int:
    """Return how many queued images a caller still waits for."""
    assert scorer._thread is not None
    return sum(not item.future.done() for item in scorer._thread._queues[CASCADE])


async def test_score_of_a_cancelled_call_is_in_no_pass(scorer: NetworkScorer, network: HeldNetwork) -> None:
    network.goes_on.clear()
    first = call(scorer, 1)
    await until(lambda: network.passes == [[1]])
    left = call(scorer, 2, 3)
    await until(lambda: waiting_count(scorer) == 2)
    left.cancel()
    await until(lambda: waiting_count(scorer) == 0)
    later = call(scorer, 4, 5)
    await until(lambda: waiting_count(scorer) == 2)

    network.goes_on.set()

    assert (await first).confidences == [1 / 255]
    assert (await later).confidences == [4 / 255, 5 / 255]
    assert network.passes == [[1], [4, 5]]


async def test_close_scores_images_that_are_being_decoded(scorer: NetworkScorer, network: HeldNetwork) -> None:
    network.decodes.clear()
    taken = call(scorer, 51)
    await until(lambda: scorer._taken.count == 1)
    closing = asyncio.create_task(scorer.close())
    await asyncio.sleep(0)
    network.decodes.set()

    assert (await taken).confidences == [0.2]
    await closing


async def test_closed_scorer_refuses_images(scorer: NetworkScorer) -> None:
    await scorer.close()

    with pytest.raises(Unavailable) as refused:
        await call(scorer, 1)

    assert refused.value.reason == Reason.DRAINING
