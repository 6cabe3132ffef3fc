"""Pictures that wait for a discriminator's pass, and those whose callers have left."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pentimento.diffusion.discriminators import PictureDiscriminator
from pentimento.domain.errors import Unavailable
from pentimento.domain.reasons import Reason
from pentimento.pictures.png_text import flat_png
from services.discriminator.network_scorer import NetworkScorer, ScoringLimits
from services.discriminator.scoring import PictureToScore
from tests.support.waiting import until

CASCADE = "light>heavy"


class HeldNetwork:
    """Its passes wait until they may; the confidence in a picture is its red, which is noted."""

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
    scorer = NetworkScorer([CASCADE], lambda: served, ScoringLimits(max_batch_size=2, queue_limit=8), lambda s: None)
    await scorer.open()
    network.passes.clear()
    yield scorer
    network.goes_on.set()
    await scorer.close()


def call(scorer: NetworkScorer, *reds: int) -> "asyncio.Task[Any]":
    return asyncio.create_task(scorer.score(CASCADE, [PictureToScore(flat_png(1, 1, (red, 0, 0))) for red in reds]))


def waiting_count(scorer: NetworkScorer) -> int:
    """Of pictures that somebody still wants."""
    return sum(not entry.scored.done() for entry in scorer._queue)


async def test_pictures_of_a_caller_who_left_are_in_no_pass(scorer: NetworkScorer, network: HeldNetwork) -> None:
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


async def test_a_picture_that_is_being_decoded_when_the_scorer_closes_is_scored(
    scorer: NetworkScorer, network: HeldNetwork
) -> None:
    network.decodes.clear()
    taken = call(scorer, 51)
    await until(lambda: scorer._taken_count == 1)
    closing = asyncio.create_task(scorer.close())
    await asyncio.sleep(0)
    network.decodes.set()

    assert (await taken).confidences == [0.2]
    await closing


async def test_a_scorer_that_closes_takes_no_more(scorer: NetworkScorer) -> None:
    await scorer.close()

    with pytest.raises(Unavailable) as refused:
        await call(scorer, 1)

    assert refused.value.reason == Reason.DRAINING
