"""Serve plain diffusers with LitServe, the peer of end_to_end.

    python -m benchmarks.peers.diffusers_litserve MODEL LORAS PORT MAX_BATCH BATCH_TIMEOUT_S WORKERS COMPILED

LitServe collects requests into batches for WORKERS processes of one torch thread each. A batch is one call of
StableDiffusionPipeline for its requests without a LoRA, and one call per set of LoRAs, since a pipeline holds one set
at a time. LoRAs are loaded beforehand from the folders of the directory LORAS, into a second pipeline, so that images
without LoRAs do not pass through their layers. COMPILED 1 compiles the denoiser.
"""

import asyncio
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import litserve

from benchmarks.peers.litserve import end_group, free_port, until_healthy
from benchmarks.peers.orders import PeerOrder, PeerSettings
from lab.fixtures.worker_process import start_on
from pentimento.rpc.memory import keep_freed_memory


class PeerProcess:
    """Control a running peer. It waits for requests in a busy loop: pause it while nothing calls it."""

    def __init__(self, process: "subprocess.Popen[bytes]", client: httpx.AsyncClient) -> None:
        self._process = process
        self._client = client

    def pause(self) -> None:
        """Stop its processes until `resume`."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue its processes."""
        os.killpg(self._process.pid, signal.SIGCONT)

    async def generate(self, order: PeerOrder) -> bytes:
        """Return the PNG. Raises httpx.HTTPStatusError for any other answer."""
        response = await self._client.post("/predict", json=asdict(order))
        response.raise_for_status()
        return response.content


@asynccontextmanager
async def diffusers_peer(model: Path, loras: Path, settings: PeerSettings) -> AsyncIterator[PeerProcess]:
    """Start the peer, and end it with all its processes."""
    port = free_port()
    arguments = [model, loras, port, settings.max_batch, settings.timeout_s, settings.worker_count]
    command = [sys.executable, "-m", __name__, *map(str, arguments), str(int(settings.compiled))]
    with start_on(None, command, start_new_session=True) as process:
        try:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None, limits=limits) as client:
                await until_healthy(client)
                peer = PeerProcess(process, client)
                # Each process generates once: first images take longer.
                orders = [PeerOrder("warm up", seed, 2, 2.0) for seed in range(4 * settings.worker_count)]
                await asyncio.gather(*(peer.generate(order) for order in orders))
                yield peer
        finally:
            os.killpg(process.pid, signal.SIGCONT)
            end_group(process)


class PipelineApi(litserve.LitAPI):  # type: ignore[misc] # LitServe is not typed
    """Serve one pipeline: constructed in LitServe's main process, set up in its workers."""

    def __init__(self, model: Path, loras: Path, settings: PeerSettings) -> None:
        super().__init__(max_batch_size=settings.max_batch, batch_timeout=settings.timeout_s)
        self._model = model
        self._loras = loras
        self._compiled = settings.compiled

    def setup(self, device: str) -> None:
        import torch

        keep_freed_memory()  # as workers do
        torch.set_num_threads(1)
        self._plain = self._pipeline()
        self._styled = self._pipeline()
        for folder in sorted(self._loras.glob("*lora*")):
            if folder.is_dir():
                self._styled.load_lora_weights(str(folder), adapter_name=folder.name)
        if self._compiled:
            self._plain.unet = torch.compile(self._plain.unet, dynamic=True)
            for count in (1, 2, 4):
                self.predict([PeerOrder("warm up", 0, 2, 2.0)] * count)

    def _pipeline(self) -> Any:
        import torch
        from diffusers import StableDiffusionPipeline

        found = StableDiffusionPipeline.from_pretrained(str(self._model), safety_checker=None, dtype=torch.float32)
        found.set_progress_bar_config(disable=True)
        found.vae.decoder.to(memory_format=torch.channels_last)  # as workers do on a CPU
        return found

    def decode_request(self, request: dict[str, Any]) -> PeerOrder:
        return PeerOrder(**{**request, "loras": tuple(request["loras"])})

    def batch(self, inputs: list[PeerOrder]) -> list[PeerOrder]:
        return inputs

    def predict(self, orders: list[PeerOrder] | PeerOrder) -> list[bytes] | bytes:
        """LitServe passes a single order, not a list of one, if batches have size 1."""
        if isinstance(orders, PeerOrder):
            return self._generate([orders])[0]
        generated: dict[int, bytes] = {}
        alike = {(order.loras, order.steps, order.guidance_scale) for order in orders}
        for one in alike:
            rows = [row for row, order in enumerate(orders) if (order.loras, order.steps, order.guidance_scale) == one]
            generated.update(zip(rows, self._generate([orders[row] for row in rows]), strict=True))
        return [generated[row] for row in range(len(orders))]

    def _generate(self, orders: Sequence[PeerOrder]) -> list[bytes]:
        """Generate orders with the same LoRAs, steps and guidance scale."""
        import torch

        first = orders[0]
        pipeline = self._styled if first.loras else self._plain
        if first.loras:
            pipeline.set_adapters(list(first.loras), [1.0] * len(first.loras))
        with torch.inference_mode():
            images = pipeline(
                [order.prompt for order in orders],
                num_inference_steps=first.steps,
                guidance_scale=first.guidance_scale,
                generator=[torch.Generator("cpu").manual_seed(order.seed) for order in orders],
            ).images
        return [as_png(image) for image in images]

    def unbatch(self, output: list[bytes]) -> list[bytes]:
        return output

    def encode_response(self, output: bytes) -> Any:
        return litserve.Response(content=output, media_type="image/png")


def as_png(image: Any) -> bytes:
    """Return a Pillow image as PNG, in Pillow's default encoding."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def serve(model: Path, loras: Path, port: int, settings: PeerSettings) -> None:
    """Serve until the process ends."""
    api = PipelineApi(model, loras, settings)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=settings.worker_count, timeout=False)
    server.run(host="127.0.0.1", port=port, log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    place, styles, listen, *rest = sys.argv[1:]
    batch, wait, workers, compiled = rest
    serve(Path(place), Path(styles), int(listen), PeerSettings(int(batch), float(wait), int(workers), compiled == "1"))
