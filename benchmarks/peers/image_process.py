"""Generate images one prompt at a time in a separate process, without any service: our engine, or diffusers' pipeline.

    python -m benchmarks.peers.image_process SIDE MODEL_DIRECTORY COMPILED

SIDE is `engine` or `diffusers`, COMPILED 1 or 0. Input is a line of JSON (prompt, seed, steps, guidance_scale); output
is a line with the size in bytes, then the image file. Our engine decodes and encodes as a worker does and answers with
a PNG. diffusers runs in inference mode and answers with raw pixels (PPM), so that only our side pays for encoding.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from pentimento.rpc.memory import keep_freed_memory


@dataclass(frozen=True)
class ImageOrder:
    prompt: str
    seed: int
    steps: int
    guidance_scale: float


class ImageMaker(Enum):
    """Name the side that generates the images."""

    ENGINE = "engine"
    DIFFUSERS = "diffusers"


Answer = Callable[[ImageOrder], bytes]


class ImageProcess:
    """Send orders, and wait for the image."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to: BinaryIO = process.stdin  # type: ignore[assignment] # Popen's streams are IO[bytes]
        self._from: BinaryIO = process.stdout  # type: ignore[assignment]

    def await_ready(self) -> None:
        """Return once it takes orders. Raises RuntimeError if it does not start."""
        if self._from.readline() != b"ready\n":
            raise RuntimeError("the process did not start")

    def generate(self, order: ImageOrder) -> bytes:
        """Return the image file."""
        self._to.write(json.dumps(asdict(order)).encode() + b"\n")
        self._to.flush()
        return self._from.read(int(self._from.readline()))


@contextmanager
def image_process(side: ImageMaker, model: Path, *, compiled: bool) -> Iterator[ImageProcess]:
    """Run a process with one torch thread, as a worker does, and end it with the block."""
    command = [sys.executable, "-m", __name__, side.value, str(model), str(int(compiled))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        try:
            ours = ImageProcess(process)
            ours.await_ready()
            yield ours
        finally:
            process.terminate()


def engine_answers(model: Path, compiled: bool) -> Answer:
    """Return our engine as a worker runs it: steps, decoder and PNG encoder on separate threads."""
    import torch

    from benchmarks.engine_latency import compiled_denoiser
    from lab.fixtures.latent_listener import generated_together
    from pentimento.devices.choices import CompileMode
    from pentimento.diffusion.denoising import DenoisingRequest, NoiseStart
    from pentimento.diffusion.engine import CompiledDenoiser, EngineSettings, StepEngine
    from pentimento.diffusion.families import load_model
    from pentimento.domain.generation import GenerationSpec
    from services.unet_worker.attempts.finishing import Finisher
    from services.unet_worker.models.checkpoint_loading import denoiser_for

    loaded = load_model(model, torch.device("cpu"), torch.float32)
    denoiser = denoiser_for(loaded, CompileMode.COMPILE if compiled else CompileMode.OFF)
    engine = StepEngine(loaded, EngineSettings(max_batch=1), denoiser=denoiser)
    engine.start()
    if isinstance(denoiser, CompiledDenoiser):
        compiled_denoiser(loaded, engine, denoiser)
    finisher, runner, info = Finisher(loaded), asyncio.Runner(), loaded.info
    size = (info.default_width_px, info.default_height_px)

    def answer(order: ImageOrder) -> bytes:
        asked = {"guidance_scale": order.guidance_scale, "scheduler": info.schedulers[0], "seed": order.seed}
        spec = GenerationSpec(order.prompt, "", "", *size, order.steps, **asked)  # type: ignore[arg-type]
        (latent,) = generated_together(engine, [DenoisingRequest(spec, NoiseStart())])
        return runner.run(finisher.finish(latent, "png", keep_png=True)).image

    return answer


def diffusers_answers(model: Path, compiled: bool) -> Answer:
    """Return diffusers' pipeline in inference mode."""
    import torch
    from diffusers import StableDiffusionPipeline

    pipeline = StableDiffusionPipeline.from_pretrained(model, safety_checker=None, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.vae.decoder.to(memory_format=torch.channels_last)  # as workers do on a CPU
    if compiled:
        pipeline.unet = torch.compile(pipeline.unet, dynamic=False)

    @torch.inference_mode()
    def answer(order: ImageOrder) -> bytes:
        image = pipeline(
            order.prompt,
            num_inference_steps=order.steps,
            guidance_scale=order.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(order.seed),
        ).images[0]
        return f"P6 {image.width} {image.height} 255\n".encode() + image.tobytes()

    return answer


def serve(side: ImageMaker, model: Path, compiled: bool) -> None:
    """Answer orders until the input ends."""
    import torch

    keep_freed_memory()  # as workers do
    torch.set_num_threads(1)
    # The line protocol uses stdout; the libraries' prints go to stderr.
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    answer = (engine_answers if side is ImageMaker.ENGINE else diffusers_answers)(model, compiled)
    answers.write(b"ready\n")
    answers.flush()
    for line in sys.stdin:
        image = answer(ImageOrder(**json.loads(line)))
        answers.write(b"%d\n" % len(image) + image)
        answers.flush()


if __name__ == "__main__":
    serve(ImageMaker(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "1")
