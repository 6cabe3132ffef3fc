"""Start LitServe with the same model, and call it as a client would."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import torch
from safetensors.torch import save_file

from benchmarks.litserve_server import litserve_process
from benchmarks.worker_load import FIRST_STEPS, Ask, WorkerArrival
from lab.fixtures.worker_process import START_S
from pentimento.diffusion.families import load_model


@asynccontextmanager
async def litserve_side(
    model: Path, donors: Path, max_batch: int, timeout_s: float, *, together: str = "mixed", core: int | None = None
) -> AsyncIterator[Ask]:
    """Start it and yield a call; `donors` is the file of `write_donors`."""
    port = free_port()
    with litserve_process(model, donors, port, max_batch, timeout_s, together, core):
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None, limits=limits) as client:
            await until_healthy(client)
            yield lambda arrival: ask_litserve(client, arrival)


def write_donors(model: Path, path: Path) -> None:
    """Write unit-variance noise in place of latents: the content does not change the time."""
    loaded = load_model(model, torch.device("cpu"), torch.float32)
    shape = loaded.latent_shape(loaded.info.default_width_px, loaded.info.default_height_px)
    save_file({str(step): torch.randn(shape) for step in FIRST_STEPS if step}, path)


async def ask_litserve(client: httpx.AsyncClient, arrival: WorkerArrival) -> None:
    order = {"prompt": arrival.prompt, "seed": abs(arrival.number), "first_step": arrival.first_step}
    response = await client.post("/predict", json=order)
    response.raise_for_status()
    if not response.content.startswith(b"\x89PNG"):
        raise RuntimeError("LitServe did not answer with an image")


async def until_healthy(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(START_S):
        while True:
            try:
                if (await client.get("/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.2)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
