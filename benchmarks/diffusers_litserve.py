"""Plain diffusers behind LitServe: the peer of end_to_end. Run as

    python -m benchmarks.diffusers_litserve MODEL LORAS PORT MAX_BATCH BATCH_TIMEOUT_S WORKERS COMPILED

LitServe gathers requests into batches, for WORKERS processes of one torch thread each. A batch is one call of
StableDiffusionPipeline for those of it without a LoRA, and one for each set of LoRAs that others ask for, since a
pipeline has one set at a time. LoRAs are loaded beforehand from the folders of the directory LORAS, into a second
pipeline, so that pictures without any do not pass through their layers. COMPILED 1 compiles the denoiser.
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

from benchmarks.litserve_server import end_group
from benchmarks.litserve_side import free_port, until_healthy
from benchmarks.peer_orders import PeerOrder, PeerSettings
from lab.fixtures.worker_process import start_on
from pentimento.rpc.freed_memory import keep_freed_memory


class PeerProcess:
    """A running peer. It waits for requests in a busy loop: whoever does not ask it stops it meanwhile."""

    def __init__(self, process: "subprocess.Popen[bytes]", client: httpx.AsyncClient) -> None:
        self._process = process
        self._client = client

    def pause(self) -> None:
        """Changes state: nothing of it runs until `resume`."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Changes state: it runs on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    async def paint(self, order: PeerOrder) -> bytes:
        """Return the PNG. Raises httpx.HTTPStatusError for anything else."""
        response = await self._client.post("/predict", json=asdict(order))
        response.raise_for_status()
        return response.content


@asynccontextmanager
async def diffusers_peer(model: Path, loras: Path, settings: PeerSettings) -> AsyncIterator[PeerProcess]:
    """Start it, and end it with all that it started."""
    port = free_port()
    arguments = [model, loras, port, settings.max_batch, settings.timeout_s, settings.worker_count]
    command = [sys.executable, "-m", __name__, *map(str, arguments), str(int(settings.compiled))]
    with start_on(None, command, start_new_session=True) as process:
        try:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None, limits=limits) as client:
                await until_healthy(client)
                peer = PeerProcess(process, client)
                # Each of its processes paints once: the first pictures take longer.
                orders = [PeerOrder("warm up", seed, 2, 2.0) for seed in range(4 * settings.worker_count)]
                await asyncio.gather(*(peer.paint(order) for order in orders))
                yield peer
        finally:
            os.killpg(process.pid, signal.SIGCONT)
            end_group(process)


class PipelineApi(litserve.LitAPI):  # type: ignore[misc] # LitServe is not typed
    """Made in LitServe's own process, set up in its workers'."""

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
        """LitServe passes a single order, not a list of one, where batches are of size 1."""
        if isinstance(orders, PeerOrder):
            return self._paint([orders])[0]
        painted: dict[int, bytes] = {}
        alike = {(order.loras, order.steps, order.guidance_scale) for order in orders}
        for one in alike:
            rows = [row for row, order in enumerate(orders) if (order.loras, order.steps, order.guidance_scale) == one]
            painted.update(zip(rows, self._paint([orders[row] for row in rows]), strict=True))
        return [painted[row] for row in range(len(orders))]

    def _paint(self, orders: Sequence[PeerOrder]) -> list[bytes]:
        """Those of one set of LoRAs, steps and guidance scale."""
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
    """Return a picture of Pillow's as it encodes it by default."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def serve(model: Path, loras: Path, port: int, settings: PeerSettings) -> None:
    """Serve until the process is ended."""
    api = PipelineApi(model, loras, settings)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=settings.worker_count, timeout=False)
    server.run(host="127.0.0.1", port=port, log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    place, styles, listen, *rest = sys.argv[1:]
    batch, wait, workers, compiled = rest
    serve(Path(place), Path(styles), int(listen), PeerSettings(int(batch), float(wait), int(workers), compiled == "1"))
