"""Run one command together with the embedder that it needs, and end both."""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pentimento.domain.errors import Unavailable
from pentimento.supervisor.child import Child, start_child
from pentimento.supervisor.process import wait_until_serving

KEPT_LINES = 8


async def run_beside_embedder(encoder: Path, module: str, arguments: Sequence[str]) -> int:
    """Run `python -m module` with `arguments` and `--embedder-address`, and return its exit code, negative for a
    signal. It shares this process's output. Raises Unavailable, with the embedder's last lines, if the embedder ends
    before it serves."""
    with tempfile.TemporaryDirectory(prefix="pentimento-") as folder:
        address = f"unix:{folder}/embedder.sock"
        said: list[str] = []
        flags = ("--listen", address, "--encoder", str(encoder), "--instance-id", "embedder")
        embedder = await start_child("services.embedder", flags, folder, said.append)
        ended = asyncio.create_task(embedder.wait())
        try:
            await _await_serving(address, ended, said)
            command = await start_child(module, (*arguments, "--embedder-address", address), folder, _show)
            return await _outcome(command)
        finally:
            embedder.terminate()
            await ended


async def _await_serving(address: str, ended: "asyncio.Task[int]", said: list[str]) -> None:
    serving = asyncio.create_task(wait_until_serving(address))
    await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        serving.cancel()
        raise Unavailable("EMBEDDER_NOT_UP", "the embedder did not come up: " + " ".join(said[-KEPT_LINES:]))


async def _outcome(command: Child) -> int:
    ended = asyncio.create_task(command.wait())
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        command.terminate()
        with suppress(asyncio.CancelledError):
            await ended
        raise


def _show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
