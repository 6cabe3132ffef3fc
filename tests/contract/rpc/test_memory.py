"""Test the memory of a process during and after an attack, with tokens and without: bounded, then freed."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from lab.fixtures.raw_http2 import RawConnection, gzip_bomb, message_prefix, raw_connection
from pentimento.domain.tenants import Role
from pentimento.rpc import new_token, token_entry
from pentimento.rpc.probe import status_of
from tests.contract.rpc.scripted import WORKER

EXECUTE = f"/{WORKER}/Execute"
MEBIBYTE = 1 << 20
# Nearly the largest message that the process takes.
LARGE_BYTES = 15 * MEBIBYTE
BOMB = gzip_bomb(LARGE_BYTES)
HALF = message_prefix(LARGE_BYTES) + bytes(LARGE_BYTES - 1)
PEAK_MIB, AFTER_MIB = 256, 16
CONNECTIONS, STREAMS = 2, 24
TIMEOUT_S = 0.05
GIVEN_BACK_S = 120.0


@contextmanager
def program(address: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.contract.rpc.program", "--listen", address, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            while status_of(address) != "SERVING":
                assert running.poll() is None
            yield running
        finally:
            running.kill()


def memory_mib(process: "subprocess.Popen[str]", name: str) -> int:
    """Read VmRSS, or VmHWM for the peak."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) // 1024
    raise AssertionError(f"the kernel tells no {name}")


def memory_once_quiet(process: "subprocess.Popen[str]", limit_mib: int) -> int:
    """Return the memory after the attack: earlier calls end, and freed memory is returned a second or two later."""
    end = time.monotonic() + GIVEN_BACK_S
    while (held := memory_mib(process, "VmRSS")) > limit_mib and time.monotonic() < end:
        time.sleep(0.1)
    return held


async def send_bombs(peer: RawConnection, token: str | None) -> None:
    for _ in range(STREAMS):
        stream = await peer.headers(EXECUTE, token, [("grpc-encoding", "gzip")])
        await peer.data(stream, BOMB, end=True, limit_s=TIMEOUT_S)


async def send_halves(peer: RawConnection, token: str | None) -> None:
    """Send messages without their last byte, until the server accepts no further byte of any message."""
    sent = {await peer.headers(EXECUTE, token): 0 for _ in range(STREAMS)}
    taken = -1
    while sum(sent.values()) > taken:
        taken = sum(sent.values())
        for number, (stream, at) in enumerate(sent.items()):
            # Frames for every stream are read while the first waits.
            limit_s = 0.0 if number else TIMEOUT_S
            sent[stream] += await peer.data(stream, HALF[at : at + MEBIBYTE], limit_s=limit_s)


async def attack(address: str, token: str | None, send: Callable[[RawConnection, str | None], Awaitable[None]]) -> None:
    async with AsyncExitStack() as peers:
        for _ in range(CONNECTIONS):
            peer = await peers.enter_async_context(raw_connection(address))
            await peer.greeting()
            await send(peer, token)


@pytest.mark.slow
@pytest.mark.parametrize("send", [send_bombs, send_halves], ids=["bombs", "halves"])
@pytest.mark.parametrize("caller", ["nobody", "tenant", "open"])
def test_memory_returns_to_normal_after_attack(
    tmp_path: Path, socket_path: Path, send: Callable[[RawConnection, str | None], Awaitable[None]], caller: str
) -> None:
    token = new_token()
    file = tmp_path / "tokens.toml"
    file.write_text(token_entry(token, "acme", frozenset({Role.SERVICE})))
    address = f"unix:{socket_path}"
    with program(address, *([] if caller == "open" else ["--token-file", str(file)])) as running:
        before = memory_mib(running, "VmRSS")
        asyncio.run(attack(address, token if caller == "tenant" else None, send))
        peak = memory_mib(running, "VmHWM")
        after = memory_once_quiet(running, before + AFTER_MIB)
        assert status_of(address, deadline_s=GIVEN_BACK_S) == "SERVING"

    assert peak - before <= PEAK_MIB
    assert after - before <= AFTER_MIB
