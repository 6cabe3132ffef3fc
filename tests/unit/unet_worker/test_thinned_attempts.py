"""What a picture that left out steps leaves to the cache."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.held_models import HELD
from pentimento.domain.generation import Attempt, CacheGrant, FromNoise, GenerationSpec, Route, Scheduler
from pentimento.stores.objects import open_objects
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.attempts.runner import AttemptRunner, PaintedPicture

SPEC = GenerationSpec("a circle", "", "tiny", 32, 32, 12, 1.5, Scheduler.DDIM, seed=1)
ORDER = ExecuteOrder(
    Attempt("r", 1, 1, "f", 1, "t"),
    SPEC,
    Route("", FromNoise(), "tiny", HELD.model_digest),
    1,
    cache_grant=CacheGrant("g", (), "cache/image", 1000),
)


class Painted:
    """A picture that is there at once, with these steps left out."""

    def __init__(self, thinned_steps: tuple[int, ...]) -> None:
        self._thinned_steps = thinned_steps

    async def paint(self, *_: Any) -> PaintedPicture:
        return PaintedPicture(HELD, b"png", "sha256:p", b"png", (), 0.0, 12, 0, 0.1, thinned_steps=self._thinned_steps)


@pytest.mark.parametrize(
    ("thinned_steps", "told", "is_kept"), [((), False, True), ((4, 8), False, False), ((4, 8), True, True)]
)
async def test_a_thinned_picture_is_a_donor_where_the_order_says_so(
    tmp_path: Path, thinned_steps: tuple[int, ...], told: bool, is_kept: bool
) -> None:
    objects = open_objects(f"file://{tmp_path}")
    with ThreadPoolExecutor(1) as threads:
        runner = AttemptRunner(Painted(thinned_steps), objects, threads, 10.0, lambda: None)
        outcome = await runner.run(replace(ORDER, cache_thinned_picture=told), lambda event: None)

    assert outcome.result.thinned_steps == thinned_steps
    assert (outcome.result.captured.image is not None) is is_kept
    assert list(objects.keys("cache/")) == (["cache/image"] if is_kept else [])
