"""Serve the same model with LitServe: one side of engine_throughput.

    python -m benchmarks.peers.litserve MODEL DONORS PORT MAX_BATCH_SIZE BATCH_TIMEOUT_S TOGETHER

LitServe collects requests into a batch and waits until `predict` has answered it; later requests wait for the
next batch. TOGETHER selects the requests that share forward passes inside `predict`. "mixed": all of the batch, by the
engine's loop, where images at different steps share passes and finished ones leave, so that only the joining differs
from our side. "equal-starts": requests with the same steps, as in a diffusers pipeline, one such group after the other.
DONORS is a safetensors file with the requests' starting latents, held in memory here.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import litserve
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.worker_load import FIRST_STEPS, STEPS, Ask, WorkerArrival
from lab.fixtures.latent_listener import LatentListener
from lab.fixtures.worker_process import START_S, start_on
from pentimento.diffusion.denoising import DenoisingRequest, LatentStart, NoiseStart
from pentimento.diffusion.engine import (
    BatchLimits,
    Denoiser,
    EngineObserver,
    EngineSettings,
    StepLoop,
)
from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.images import encode_pixels
from pentimento.domain.generation import GenerationSpec
from pentimento.rpc.memory import keep_freed_memory

END_S = 10.0
TOGETHER = ("mixed", "equal-starts")


@dataclass(frozen=True)
class StepOrder:
    prompt: str
    seed: int
    first_step: int


class WholeBatches:
    """Run the images of one batch from their start to their PNG; none joins later."""

    def __init__(self, model: DiffusionModel, donors: dict[int, Tensor], max_batch: int, together: str) -> None:
        self._model = model
        self._donors = donors
        self._together = together
        limits = BatchLimits(max_batch, None, time.monotonic)
        settings = EngineSettings(max_batch=max_batch)
        self._loop = StepLoop(model, Denoiser(model), limits, settings, EngineObserver(), time.monotonic)

    @torch.inference_mode()
    def generate(self, orders: Sequence[StepOrder]) -> list[bytes]:
        listeners = [LatentListener() for _ in orders]
        for group in self._groups(list(zip(orders, listeners, strict=True))):
            for order, one in group:
                self._loop.submit(self._request(order), one)
            while self._loop.tick():
                pass
        return [self._png(one) for one in listeners]

    def _groups(self, batch: list[tuple[StepOrder, LatentListener]]) -> list[list[tuple[StepOrder, LatentListener]]]:
        if self._together == "mixed":
            return [batch]
        starts = sorted({order.first_step for order, _ in batch})
        return [[one for one in batch if one[0].first_step == start] for start in starts]

    def _png(self, listener: LatentListener) -> bytes:
        return encode_pixels(self._model.decode_latent(listener.result()), "png")

    def _request(self, order: StepOrder) -> DenoisingRequest:
        info, step = self._model.info, order.first_step
        spec = GenerationSpec(
            prompt=order.prompt,
            negative_prompt="",
            model="",
            width_px=info.default_width_px,
            height_px=info.default_height_px,
            num_inference_steps=STEPS,
            guidance_scale=3.0,
            scheduler=info.schedulers[0],
            seed=order.seed,
        )
        return DenoisingRequest(spec, LatentStart(self._donors[step], step) if step else NoiseStart())


@contextmanager
def litserve_process(
    model: Path, donors: Path, port: int, max_batch: int, timeout_s: float, together: str, core: int | None
) -> Iterator[None]:
    """Run one worker process with one torch thread, and LitServe's HTTP process."""
    arguments = [str(model), str(donors), str(port), str(max_batch), str(timeout_s), together]
    command = [sys.executable, "-m", "benchmarks.peers.litserve", *arguments]
    with start_on(core, command, start_new_session=True) as process:
        try:
            yield
        finally:
            end_group(process)


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End the group: LitServe's HTTP server and worker would outlive the first process and keep computing."""
    os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def read_donors(path: Path) -> dict[int, Tensor]:
    """Return latents by first step."""
    from safetensors.torch import load_file

    return {int(name): latent for name, latent in load_file(path).items()}


class EngineApi(litserve.LitAPI):  # type: ignore[misc] # LitServe is not typed
    """Serve one engine: constructed in LitServe's main process, set up in its worker."""

    def __init__(self, model: Path, donors: Path, max_batch: int, timeout_s: float, together: str) -> None:
        super().__init__(max_batch_size=max_batch, batch_timeout=timeout_s)
        self._model = model
        self._donors = donors
        self._max_batch = max_batch
        self._together = together

    def setup(self, device: str) -> None:
        keep_freed_memory()  # as workers do
        torch.set_num_threads(1)
        model = load_model(self._model, torch.device("cpu"), torch.float32)
        self._batches = WholeBatches(model, read_donors(self._donors), self._max_batch, self._together)
        self._batches.generate([StepOrder("warm up", 0, 0)])

    def decode_request(self, request: dict[str, Any]) -> StepOrder:
        return StepOrder(request["prompt"], request["seed"], request["first_step"])

    def batch(self, inputs: list[StepOrder]) -> list[StepOrder]:
        return inputs

    def predict(self, orders: list[StepOrder] | StepOrder) -> list[bytes] | bytes:
        """LitServe passes a single order, not a list of one, where batches are of size 1."""
        if isinstance(orders, StepOrder):
            return self._batches.generate([orders])[0]
        return self._batches.generate(orders)

    def unbatch(self, output: list[bytes]) -> list[bytes]:
        return output

    def encode_response(self, output: bytes) -> Any:
        return litserve.Response(content=output, media_type="image/png")


def serve(model: Path, donors: Path, port: int, max_batch: int, timeout_s: float, together: str) -> None:
    api = EngineApi(model, donors, max_batch, timeout_s, together)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=False)
    server.run(host="127.0.0.1", port=port, log_level="warning", generate_client_file=False)


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


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), sys.argv[6])
