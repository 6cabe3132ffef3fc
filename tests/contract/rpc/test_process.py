"""Test a service as a real process: its start, its signals, its exit codes, and its remains."""

import asyncio
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker
from pentimento.domain import errors
from pentimento.domain.tenants import Role
from pentimento.rpc import RpcChannelSettings, error_from_rpc, new_token, open_channel, token_entry, transport
from tests.contract.rpc.scripted import worker_stub

ROOT = Path(__file__).resolve().parents[3]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
# The product's own limit: other tests use a longer one, so that a loaded machine loses no connection.
KEEPALIVE = transport.KEEPALIVE


@asynccontextmanager
async def program(*flags: str, under: tuple[str, ...] = ()) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `program.py`, started by the command `under`; kill it after the block."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENTIMENTO_")}
    process = await asyncio.create_subprocess_exec(
        *(*under, sys.executable, "-m", "tests.contract.rpc.program", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def said(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def stderr_of(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    return (await process.stderr.read()).decode()


async def health_until(address: str, wanted: Callable[[int], bool]) -> None:
    """Watch the process's health until it has the wanted status."""
    async with open_channel(address, RpcChannelSettings()) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        async for one in watch:
            if wanted(one.status):
                return


async def serving(address: str) -> None:
    await health_until(address, lambda status: status == SERVING)


@pytest.fixture
def address(socket_path: Path) -> str:
    return f"unix:{socket_path}"


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
async def test_process_drains_at_signal_and_removes_its_socket(
    address: str, socket_path: Path, signal_number: int
) -> None:
    async with program("--listen", address) as process:
        await serving(address)
        process.send_signal(signal_number)
        words = [await said(process) for _ in range(3)]
        code = await process.wait()

    assert (words, code) == (["warming", "draining", "drained"], 0)
    assert not socket_path.exists()


async def test_process_that_warms_is_not_serving_and_stops_at_once(address: str) -> None:
    async with program("--listen", address, "--warm", "never") as process:
        assert await said(process) == "warming"
        await health_until(address, lambda status: status == NOT_SERVING)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_health_is_not_serving_while_draining_and_a_second_signal_ends_it(
    address: str, socket_path: Path
) -> None:
    async with program("--listen", address, "--drain", "never", "--drain-timeout-s", "600") as process:
        await serving(address)
        process.send_signal(signal.SIGTERM)
        await health_until(address, lambda status: status == NOT_SERVING)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert not socket_path.exists()


async def test_a_drain_that_never_ends_is_left_at_its_timeout(address: str) -> None:
    async with program("--listen", address, "--drain", "never", "--drain-timeout-s", "0.2") as process:
        await serving(address)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert "work remained when the drain timed out" in await stderr_of(process)


async def test_a_process_does_not_look_through_its_imports_and_lets_its_event_loop_run_soon(address: str) -> None:
    async with program("--listen", address, "--warm", "tells") as process:
        told = [await said(process) for _ in range(2)]

    assert told == ["warming", "frozen True, switches after 0.0005 s"]


async def test_open_file_limit_covers_all_connections(address: str) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Limit only the child: this process may have more files open, from earlier tests.
    few = ("sh", "-c", 'ulimit -S -n 512 && exec "$@"', "sh")
    async with program("--listen", address, under=few) as process:
        assert await said(process) == "warming"
        allowed = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)

    assert allowed == (1280, most)


async def test_open_watch_ends_as_shutting_down(address: str) -> None:
    async with program("--listen", address) as process, open_channel(address, RpcChannelSettings()) as channel:
        call = worker_stub(channel).WatchCredits(worker.WatchCreditsRequest(), wait_for_ready=True)
        await call.read()
        process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert await process.wait() == 0

    refused = error_from_rpc(caught.value)
    assert (type(refused), refused.reason) == (errors.Unavailable, "SHUTTING_DOWN")


@pytest.mark.slow
async def test_waiting_call_notices_stopped_peer(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The waiting side pings ten times as often as by default, and the other side allows it.
    quick = {"grpc.keepalive_time_ms": 100}
    monkeypatch.setattr(transport, "KEEPALIVE", tuple((dict(KEEPALIVE) | quick).items()))
    async with program("--listen", address) as process, open_channel(address, RpcChannelSettings()) as channel:
        call = await begun(channel)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()

    assert type(error_from_rpc(caught.value)) is errors.Unavailable


async def begun(channel: grpc.aio.Channel) -> "grpc.aio.UnaryStreamCall[Any, Any]":
    """Return an answered call; a call that a busy machine abandoned is repeated."""
    while True:
        call = worker_stub(channel).WatchCredits(worker.WatchCreditsRequest(), wait_for_ready=True)
        with suppress(grpc.aio.AioRpcError):
            await call.read()
            return call


async def test_sighup_reads_the_token_file_again(address: str, tmp_path: Path) -> None:
    token, file = new_token(), tmp_path / "tokens.toml"
    file.write_text("")
    async with program("--listen", address, "--token-file", str(file)) as process:
        await serving(address)
        file.write_text(token_entry(token, "acme", frozenset({Role.SERVICE})))
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        async for line in process.stderr:
            if b"token file reloaded" in line:
                break
        async with open_channel(address, RpcChannelSettings(), token) as channel:
            first = await worker_stub(channel).WatchCredits(worker.WatchCreditsRequest()).read()

    assert first.worker_id == "open"


@pytest.mark.parametrize(
    ("flags", "code", "count", "words"),
    [
        (("--listen", "ADDRESS", "--drian-timeout-s", "3"), 2, 1, "--drian-timeout-s"),
        (
            ("--listen", "ADDRESS", "--warm", "fails", "--log-level", "error"),
            1,
            1,
            "unet.safetensors: the weights are corrupt",
        ),
        (("--listen", "127.0.0.1:TAKEN"), 2, None, "is it in use?"),
    ],
    ids=["wrong setting", "corrupt weights", "port in use"],
)
async def test_process_start_that_fails_exits_with_one_line(
    address: str, socket_path: Path, flags: tuple[str, ...], code: int, count: int | None, words: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        flags = tuple(flag.replace("ADDRESS", address).replace("TAKEN", port) for flag in flags)
        async with program(*flags) as process:
            assert await process.wait() == code
            lines = (await stderr_of(process)).splitlines()

    assert count in (None, len(lines))
    assert words in "\n".join(lines)
    assert not socket_path.exists()


async def test_a_defect_at_start_is_logged_without_its_text(address: str) -> None:
    async with program("--listen", address, "--warm", "breaks", "--log-format", "json") as process:
        assert await process.wait() == 1
        text = await stderr_of(process)

    assert "ValueError" in text
    assert "canary" not in text.replace('raise ValueError(\\"canary\\")', "")


async def test_a_socket_left_by_a_killed_process_is_taken_over(address: str, socket_path: Path) -> None:
    async with program("--listen", address) as process:
        await serving(address)
        process.kill()
        await process.wait()
    assert socket_path.exists()

    async with program("--listen", address):
        await serving(address)


@pytest.mark.slow
async def test_a_socket_on_which_somebody_listens_is_left_alone(address: str) -> None:
    async with program("--listen", address):
        await serving(address)
        async with program("--listen", address) as second:
            assert await second.wait() == 2
            assert "another process listens there" in await stderr_of(second)
        await serving(address)


async def test_of_two_that_start_at_once_on_one_socket_one_serves(address: str) -> None:
    async with program("--listen", address) as first, program("--listen", address) as second:
        waits = {asyncio.create_task(process.wait()): process for process in (first, second)}
        done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await serving(address)
        assert [task.result() for task in done] == [2]
        assert len(pending) == 1
