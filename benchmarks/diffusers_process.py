"""diffusers' own pipeline in a process of its own, asked over its standard streams: one side of a comparison.

Run as `python -m benchmarks.diffusers_process MODEL_DIRECTORY`. A line of JSON in (prompt, seed, steps,
guidance_scale), the picture out as raw RGB bytes behind a line with its size: nothing is encoded, so the comparison
leaves that to our side.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from pentimento.rpc.freed_memory import keep_freed_memory


@dataclass(frozen=True)
class PipelineOrder:
    prompt: str
    seed: int
    steps: int
    guidance_scale: float


class DiffusersProcess:
    """Asks, and waits for the picture."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to: BinaryIO = process.stdin  # type: ignore[assignment] # Popen's streams are IO[bytes]
        self._from: BinaryIO = process.stdout  # type: ignore[assignment]

    def await_ready(self) -> None:
        if self._from.readline() != b"ready\n":
            raise RuntimeError("the diffusers process did not start")

    def paint(self, order: PipelineOrder) -> tuple[int, int, bytes]:
        """Width, height (pixels), RGB bytes row by row."""
        self._to.write(json.dumps(asdict(order)).encode() + b"\n")
        self._to.flush()
        width, height = (int(part) for part in self._from.readline().split())
        return width, height, self._from.read(width * height * 3)


@contextmanager
def diffusers_process(model: Path) -> Iterator[DiffusersProcess]:
    """One torch thread, as the worker has."""
    command = [sys.executable, "-m", "benchmarks.diffusers_process", str(model)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        try:
            ours = DiffusersProcess(process)
            ours.await_ready()
            yield ours
        finally:
            process.terminate()


def serve(model: str) -> None:
    import torch
    from diffusers import StableDiffusionPipeline

    keep_freed_memory()  # as workers do
    torch.set_num_threads(1)
    # Our line protocol owns stdout; whatever the libraries print goes to stderr.
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    pipeline = StableDiffusionPipeline.from_pretrained(model, safety_checker=None, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.vae.decoder.to(memory_format=torch.channels_last)  # as workers do on a CPU
    answers.write(b"ready\n")
    answers.flush()
    for line in sys.stdin:
        order = PipelineOrder(**json.loads(line))
        image = pipeline(
            order.prompt,
            num_inference_steps=order.steps,
            guidance_scale=order.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(order.seed),
        ).images[0]
        answers.write(f"{image.width} {image.height}\n".encode() + image.tobytes())
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
