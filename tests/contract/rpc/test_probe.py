"""Test the containers' health probe against a real server."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from pentimento.rpc import RpcServer, RpcServerSettings, probe
from pentimento.rpc.probe import main, status_of


@pytest.fixture(autouse=True)
def patient_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe and server share this process, which may have no processor for as long as a probe waits."""
    monkeypatch.setattr(probe, "status_of", partial(status_of, deadline_s=60.0))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RpcServer]:
    server = RpcServer(RpcServerSettings(listen=(f"unix:{tmp_path / 's'}", "127.0.0.1:0")), "probed")
    await server.start()
    yield server
    await server.stop()


async def test_probe_of_serving_process_succeeds_without_proxy(
    server: RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.set_serving()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    assert [await asyncio.to_thread(main, [address]) for address in server.bound_addresses] == [0, 0]


async def test_probe_of_other_process_names_its_status(
    server: RpcServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for address, status in ((server.bound_addresses[0], "NOT_SERVING"), (f"unix:{tmp_path / 'no'}", "UNAVAILABLE")):
        assert await asyncio.to_thread(main, [address]) == 1
        assert capsys.readouterr().err.endswith(f": {status}\n")


async def test_liveness_serves_while_the_process_does_not(server: RpcServer) -> None:
    address = server.bound_addresses[0]

    assert await asyncio.to_thread(main, [address]) == 1
    assert await asyncio.to_thread(main, [address, "liveness"]) == 0
