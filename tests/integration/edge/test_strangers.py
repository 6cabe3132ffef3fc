"""Test callers with unknown tokens, delayed by the frontdoor: they take no place from other callers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from lab.fixtures.edge_suite import running_edge
from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.tenants import Role
from pentimento.rpc import token_entry
from pentimento.rpc.call_limits import BURST_CALLS

MAX_CALLERS = 4
MAX_STRANGERS = 6


@pytest.fixture
async def suite(folder: Path, worker: PacedWorker) -> AsyncIterator[FrontdoorSuite]:
    """Run a frontdoor that rejects one unknown token a second after its burst, as it does at 200 a second under a
    flood."""
    tokens = folder / "tokens.toml"
    names = (("user", Role.USER), ("service", Role.SERVICE))
    tokens.write_text("\n".join(token_entry(name, name, frozenset({role})) for name, role in names))
    async with running_suite(folder, token_file=tokens, tls={"tenant_calls_per_s": 1.0}) as found:
        yield found


@pytest.fixture
async def http(
    folder: Path, suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setattr("services.edge.caller_channels.MAX_STRANGERS", MAX_STRANGERS)
    monkeypatch.setattr("services.edge.caller_channels.MAX_CALLERS", MAX_CALLERS)
    async with (
        running_edge(folder, f"unix:{folder / 'f'}") as running,
        httpx.AsyncClient(base_url=f"http://{running.listener.address}", timeout=60) as client,
    ):
        yield client


def shown(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.slow
async def test_delayed_rejections_hold_no_place_of_a_caller(http: httpx.AsyncClient, suite: FrontdoorSuite) -> None:
    for number in range(BURST_CALLS):
        assert (await http.get("/v1/models", headers=shown(f"burst-{number}"))).status_code == 401
    flood = [
        asyncio.ensure_future(http.get("/v1/models", headers=shown(f"unknown-{number}")))
        for number in range(3 * MAX_STRANGERS)
    ]
    shaper = suite.frontdoor.server._pipeline._shaper
    async with asyncio.timeout(60):
        await until(lambda: shaper._waiting_count >= MAX_CALLERS)

        ready = await http.get("/ready")
        health = await http.get("/health")
        models = await http.get("/v1/models", headers=shown("user"))
        metrics = await http.get("/metrics", headers=shown("service"))
        answers = await asyncio.gather(*flood)

    assert [answer.status_code for answer in (ready, health, models, metrics)] == [200, 200, 200, 200]
    # The connections that waited longest were closed for others.
    assert {answer.status_code for answer in answers} == {401, 429}
