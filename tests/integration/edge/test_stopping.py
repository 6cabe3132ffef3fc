"""Test that a stopping edge serves until its load balancer has seen that it is not ready."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from lab.fixtures.edge_suite import running_edge
from lab.fixtures.frontdoor_suite import running_suite
from lab.fixtures.paced_worker import PacedWorker
from services.edge.wiring import EdgeProcess

GUARD_S = 60
ASKED = {"prompt": "x", "num_inference_steps": 1}


@asynccontextmanager
async def stopping_edge(folder: Path, delay_s: float) -> AsyncIterator[tuple[EdgeProcess, httpx.AsyncClient, str]]:
    """Yield an edge, a client with a connection opened before, and the address."""
    async with (
        asyncio.timeout(GUARD_S),
        running_suite(folder),
        running_edge(folder, f"unix:{folder / 'f'}", drain_delay_s=delay_s) as edge,
        httpx.AsyncClient(base_url=f"http://{edge.listener.address}", timeout=GUARD_S) as kept,
    ):
        assert (await kept.get("/ready")).status_code == 200
        yield edge, kept, f"http://{edge.listener.address}"


async def test_before_it_drains_it_serves_and_is_not_ready(folder: Path, worker: PacedWorker) -> None:
    async with stopping_edge(folder, 0.0) as (edge, kept, url):
        edge.drain_delay_s = GUARD_S
        finishing = asyncio.ensure_future(edge.finish())
        await asyncio.sleep(0)
        async with httpx.AsyncClient(base_url=url, timeout=GUARD_S) as new:
            ready = [(await client.get("/ready")).status_code for client in (kept, new)]
            generated = [
                (await client.post("/v1/images/generations", json=ASKED)).status_code for client in (kept, new)
            ]
        finishing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await finishing

        with pytest.raises(httpx.ConnectError):
            await httpx.AsyncClient().get(f"{url}/health")

    assert (ready, generated) == ([503, 503], [200, 200])


async def test_edge_takes_no_connections_after_the_delay(folder: Path, worker: PacedWorker) -> None:
    async with stopping_edge(folder, 0.01) as (edge, _, url):
        await edge.finish()

        with pytest.raises(httpx.ConnectError):
            await httpx.AsyncClient().get(f"{url}/health")
