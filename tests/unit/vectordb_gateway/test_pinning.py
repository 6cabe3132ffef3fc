"""Bound the time of a pin of an object."""

import math
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import ObjectReference
from services.vectordb_gateway.entries.writer import Pinning

LATENT = ObjectReference("cache/c/" + "a" * 32, "sha256:" + "0" * 64, 100)
CENTURY_S = 100 * 366 * 86_400.0
CLOCK = SetClock()


def pinning() -> Pinning:
    written: Future[None] = Future()
    written.set_result(None)
    return Pinning(SimpleNamespace(pin=lambda *_: written), CLOCK)  # type: ignore[arg-type]


@pytest.mark.parametrize("duration_s", [0.001, CENTURY_S])
async def test_a_pin_ends_when_its_time_is_over(duration_s: float) -> None:
    assert await pinning().pin("acme", "r1", LATENT, duration_s) == CLOCK.wall() + duration_s


@pytest.mark.parametrize("duration_s", [0.0, -1.0, CENTURY_S + 1, math.nan, math.inf])
async def test_a_time_that_is_none_is_refused_by_name(duration_s: float) -> None:
    with pytest.raises(InvalidArgument, match="duration_ms"):
        await pinning().pin("acme", "r1", LATENT, duration_s)
