"""Test peers that speak gRPC badly or not at all: no bytes from them affect other peers."""

import asyncio
import pickle
import socket
from pathlib import Path

import pytest

from pentimento.rpc import RpcServerSettings
from tests.contract.rpc.scripted import EMBED_TEXT, Scripted, channel_to, embed, serving

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
PING = bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + bytes(8)


class Canary:
    """If unpickled, it would create a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self._path,)


async def send(target: Scripted, data: bytes) -> bytes:
    """Send `data` on a plain connection, and return the answer until the server closes it."""
    host, _, port = target.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except OSError:
        return b""
    finally:
        writer.close()


SENT = {
    "http/1.1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(65536),
    "ones": b"\xff" * 65536,
    "preface": PREFACE,
    "preface and ones": PREFACE + b"\xff" * 65536,
    "ping flood": PREFACE + EMPTY_SETTINGS + PING * 10_000,
}


@pytest.mark.parametrize("relayed", [False, True], ids=["direct", "relayed"])
async def test_bytes_that_are_no_grpc_leave_server_serving(relayed: bool) -> None:
    async with serving(RpcServerSettings(), takes_turns=relayed) as target, channel_to(target) as channel:
        for name, data in SENT.items():
            await send(target, data)

            assert await embed(channel, name) == name


async def test_pickled_bytes_are_not_loaded(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    payload = pickle.dumps(Canary(touched))

    async with serving(RpcServerSettings()) as target, channel_to(target) as channel:
        await send(target, payload)
        call = channel.unary_unary(EMBED_TEXT)
        for metadata in ((), (("payload-bin", payload),)):
            await asyncio.gather(call(payload, metadata=metadata), return_exceptions=True)
        after = await embed(channel, "next")

    assert after == "next"
    assert not touched.exists()


@pytest.mark.slow
@pytest.mark.parametrize("relayed", [False, True], ids=["direct", "relayed"])
async def test_half_open_connection_does_not_delay_stop(relayed: bool) -> None:
    with socket.socket() as idle:
        async with serving(RpcServerSettings(), takes_turns=relayed) as target:
            host, _, port = target.address.rpartition(":")
            idle.connect((host, int(port)))
            idle.send(PREFACE)
