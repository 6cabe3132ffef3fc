from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pentimento.testing.frontdoor_suite import FrontdoorSuite, running_suite
from pentimento.testing.paced_worker import PacedWorker
from tests.edge_packages import missing

if TYPE_CHECKING:
    from services.edge.history.reader import HistoryReader
    from services.edge.http.listener import HttpListener

collect_ignore_glob = ["test_*.py"] if missing() else []


@dataclass(frozen=True)
class EdgeUnderTest:
    """A frontdoor with a paced worker, and an edge before it; `url` is where its HTTP begins."""

    suite: FrontdoorSuite
    worker: PacedWorker
    http: httpx.AsyncClient
    url: str
    listener: "HttpListener"
    history: "HistoryReader | None" = None

    async def generate(self, **values: object) -> httpx.Response:
        return await self.http.post("/v1/images/generations", json={"prompt": "a red circle", **values})


@pytest.fixture
def limits() -> dict[str, Any]:
    """Settings of the listener that a test wants otherwise."""
    return {}


@pytest.fixture
async def edge(folder: Path, worker: PacedWorker, limits: dict[str, Any]) -> AsyncIterator[EdgeUnderTest]:
    from pentimento.testing.edge_suite import running_edge

    async with running_suite(folder) as suite, running_edge(folder, f"unix:{folder / 'f'}", **limits) as running:
        url = f"http://{running.listener.address}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            yield EdgeUnderTest(suite, worker, http, url, running.listener, running.history)
