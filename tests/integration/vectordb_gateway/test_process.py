"""Test the gateway as a process: light, warm before it serves, registered, and stopped on request."""

import asyncio
import signal
import sys
from pathlib import Path

import psutil
import pytest

from pentimento.domain.fleet import ReplicaKind
from tests.support.gateways import embedding, running_gateway

MEBIBYTE = 1024 * 1024
SCRIPT = (
    "import asyncio, sys\n"
    "import services.vectordb_gateway.__main__\n"
    "import services.vectordb_gateway.wiring\n"
    "import services.vectordb_gateway.servicer\n"
    "heavy = {'torch', 'transformers', 'diffusers', 'boto3', 'qdrant_client', 'qdrant_edge'}\n"
    "print(*sorted(set(sys.modules) & heavy))\n"
)


@pytest.mark.slow
async def test_nothing_heavy_is_imported() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SCRIPT, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()

    assert output.decode().split() == []


@pytest.mark.slow
async def test_the_gateway_and_its_index_fit_into_250_mib(tmp_path: Path) -> None:
    command = (
        *(sys.executable, "-m", "services.vectordb_gateway"),
        *("--index-url", f"edge://{tmp_path}/index"),
        *("--objects-url", f"file://{tmp_path}/objects"),
        *("--ledger-url", f"sqlite:///{tmp_path}/ledger.sqlite"),
    )
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    while b"serving" not in await process.stderr.readline():
        assert process.returncode is None
    family = psutil.Process(process.pid)
    children = family.children(recursive=True)

    used = sum(each.memory_info().rss for each in (family, *children))

    assert len(children) == 1
    assert used < 250 * MEBIBYTE
    process.send_signal(signal.SIGTERM)
    await process.communicate()
    assert process.returncode == 0
    assert not any(child.is_running() for child in children)


@pytest.mark.slow
async def test_a_wrong_url_is_answered_with_one_line(tmp_path: Path) -> None:
    flags = ("--index-url", "nonsense", "--objects-url", f"file://{tmp_path}", "--ledger-url", "sqlite:////x")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.vectordb_gateway", *flags, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()

    assert process.returncode == 1
    (line,) = errors.decode().splitlines()
    assert "index_url" in line


async def test_the_gateway_registers_with_the_controller(tmp_path: Path) -> None:
    from pentimento.clients.controller import ControllerClient
    from pentimento.rpc import RpcChannelSettings, open_channel
    from pentimento.settings import load_settings
    from services.controller.settings import ControllerSettings
    from services.controller.wiring import wire

    controller = wire(load_settings(ControllerSettings, "controller", [], {}))
    await controller.server.start()
    await controller.warm()
    address = controller.server.bound_addresses[0]
    channel = open_channel(address, RpcChannelSettings())
    try:
        async with running_gateway(tmp_path, "--controller-address", address) as gateway, asyncio.timeout(120):
            while not (fleet := await ControllerClient(channel).fleet()).replicas:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)

            (found,) = fleet.replicas
            assert found.replica.kind is ReplicaKind.VECTORDB_GATEWAY
            assert found.replica.address == gateway.process.server.bound_addresses[0]
    finally:
        await channel.close()
        await controller.drain()
        await controller.server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_before_it_is_warm_is_a_stop(tmp_path: Path, signal_number: signal.Signals) -> None:
    flags = ("--index-url", f"edge://{tmp_path}/i", "--objects-url", f"file://{tmp_path}", "--ledger-url")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.vectordb_gateway", *flags, f"sqlite:///{tmp_path}/l"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    while b"listening" not in await process.stderr.readline():
        assert process.returncode is None

    process.send_signal(signal_number)
    await process.communicate()

    assert process.returncode == 0
