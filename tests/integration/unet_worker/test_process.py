"""Test the worker as a process: errors that stop its start, and a stop during a running request."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.fixtures.worker_under_test import await_serving
from pentimento.clients.worker import WorkerClient
from pentimento.domain.execution import AttemptResult, Started
from pentimento.domain.generation import Attempt, FromNoise, Route
from pentimento.rpc import RpcChannelSettings, open_channel
from tests.integration.unet_worker.requests import spec_with


def command(checkpoint: Path, directory: Path) -> list[str]:
    flags = ["--model", str(checkpoint), "--model-name", "tiny", "--objects-url", f"file://{directory}/objects"]
    return [sys.executable, "-m", "services.unet_worker", *flags, "--listen", f"unix:{directory}/w", "--device", "cpu"]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("file", ["unet/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"])
def test_a_renamed_pickle_stops_the_start_with_one_line(checkpoint: Path, directory: Path, file: str) -> None:
    copy = shutil.copytree(checkpoint, directory / "model")
    (copy / file).write_bytes(pickle.dumps({"weights": 1}))

    ended = subprocess.run(
        [*command(copy, directory), "--log-level", "error"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ended.returncode == 1
    assert len(ended.stderr.strip().splitlines()) == 1
    assert file in ended.stderr


@pytest.fixture
def process(checkpoint: Path, directory: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Writes what it imports into the file `imports`."""
    _, *rest = command(checkpoint, directory)
    with (directory / "imports").open("wb") as imports:
        process = subprocess.Popen([sys.executable, "-X", "importtime", *rest], env=ENVIRONMENT, stderr=imports)
    with process:
        yield process
        process.kill()


# Modules of training, compilation, foreign adapters and remote stores: hundreds of modules each. A failed import is
# reported, too: for some, a part that only the whole package has.
UNUSED = {
    "torch._dynamo.eval_frame",
    "torch._inductor",
    "sympy",
    "peft",
    "transformers.modeling_utils",
    "scipy.stats",
    "botocore",
}


async def test_stopping_worker_finishes_its_image_and_imports_no_unused_module(
    process: "subprocess.Popen[bytes]", directory: Path
) -> None:
    async with open_channel(f"unix:{directory}/w", RpcChannelSettings()) as channel:
        held = (await await_serving(channel)).held
        route = Route("route", FromNoise(), "tiny", held.model_digest)
        events = WorkerClient(channel).execute(
            Attempt("request", 1, 1, "frontdoor", 1, "tenant"),
            spec_with(num_inference_steps=60),
            route,
            held.worker_generation,
        )
        assert isinstance(await anext(events), Started)
        process.send_signal(signal.SIGTERM)

        rest = [event async for event in events]

        assert isinstance(rest[-1], AttemptResult)
    assert process.wait(60) == 0
    imported = {line.rpartition("|")[2].strip() for line in (directory / "imports").read_text().splitlines()}
    assert {"torch", "diffusers.models.unets.unet_2d_condition"} <= imported
    assert imported & UNUSED == set()
