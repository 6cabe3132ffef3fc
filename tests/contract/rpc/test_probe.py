"""The health probe of containers against a real server."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from pentimento.rpc import RpcServer, RpcServerSettings, probe
from pentimento.rpc.probe import main, status_of


@pytest.fixture(autouse=True)
def patient_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prober and probed are this process, which may have no processor for as long as a probe waits."""
    monkeypatch.setattr(probe, "status_of", partial(status_of, deadline_s=60.0))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RpcServer]:
    server = RpcServer(RpcServerSettings(listen=(f"unix:{tmp_path / 's'}", "127.0.0.1:0")), "probed")
    await server.start()
    yield server
    await server.stop()


@pytest.mark.parametrize("position", [0, 1], ids=["unix socket", "port"])
async def test_a_serving_process_is_healthy(server: RpcServer, position: int) -> None:
    server.set_serving()

    assert await asyncio.to_thread(main, [server.bound_addresses[position]]) == 0


async def test_no_proxy_of_the_environment_is_asked(server: RpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.set_serving()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    assert await asyncio.to_thread(main, [server.bound_addresses[1]]) == 0


async def test_a_process_that_still_warms_up_is_not(server: RpcServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert await asyncio.to_thread(main, [server.bound_addresses[0]]) == 1
    assert capsys.readouterr().err.endswith(": NOT_SERVING\n")


def test_nor_is_one_that_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"unix:{tmp_path / 'nothing'}"]) == 1
    assert capsys.readouterr().err.endswith(": UNAVAILABLE\n")


def test_another_number_of_arguments_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: ")
