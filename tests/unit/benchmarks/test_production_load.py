"""The load of kill_any's production form: faults that a client sees end its clients, and do not stop the run."""

from collections.abc import AsyncIterator
from typing import cast

import httpx
import pytest

from benchmarks.suites import production_load
from benchmarks.suites.production_load import ProductionLoad
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.domain.image_request import Accepted, ImageRequest, RequestStatus
from pentimento.sdk import AsyncClient


class RefusingClient:
    """Refuse every request, or accept it and have lost it afterwards."""

    def __init__(self, *, accepts: bool) -> None:
        self._accepts = accepts

    async def stream(self, request: ImageRequest, idempotency_key: str) -> AsyncIterator[Accepted]:
        if not self._accepts:
            raise InvalidArgument.of("prompt", "is refused")
        yield Accepted(f"r-{idempotency_key}")

    async def get_request(self, request_id: str) -> RequestStatus:
        raise NotFound("UNKNOWN_REQUEST", request_id)


def load_of(monkeypatch: pytest.MonkeyPatch, *, accepts: bool) -> ProductionLoad:
    """Return a load that cancels and queries every request, and calls none over HTTP."""
    monkeypatch.setattr(production_load, "BOTH", 1000)
    monkeypatch.setattr(production_load, "CANCELLED", 1000 if accepts else 1)
    monkeypatch.setattr(production_load, "QUERIED", 1)
    load = ProductionLoad(cast("AsyncClient", RefusingClient(accepts=accepts)), httpx.AsyncClient())
    load._reference = [b"image"] * 8
    return load


async def test_refused_request_is_neither_cancelled_nor_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    load = load_of(monkeypatch, accepts=False)
    sample = production_load.Sample("load-1", 1)

    await load._play(sample)

    assert (sample.error, sample.accepted, load.received) == ("INVALID_FIELD", False, {})


async def test_query_of_lost_request_ends_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    load = load_of(monkeypatch, accepts=True)

    with pytest.raises(NotFound, match="r-load-1"):
        await load._play(production_load.Sample("load-1", 1))
