"""The worker's latents, through the real service, against diffusers' pipelines: few steps, every kind of checkpoint."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.golden_diffusers import Case, DiffusersReference, WorkerUnderTest, await_serving, difference
from pentimento.domain.generation import Scheduler
from tests.checkpoints import write_checkpoint
from tests.integration.unet_worker.conftest import serve

PROMPT, NEGATIVE = "a red circle", "blurred"
DDIM, EULER = Scheduler.DDIM, Scheduler.EULER

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "epsilon, leading, scaled linear": {"beta_schedule": "scaled_linear", "set_alpha_to_one": False},
    "v, trailing, cosine": {
        "prediction_type": "v_prediction",
        "timestep_spacing": "trailing",
        "beta_schedule": "squaredcos_cap_v2",
    },
    "v, trailing, zero terminal SNR": {
        "prediction_type": "v_prediction",
        "timestep_spacing": "trailing",
        "rescale_betas_zero_snr": True,
    },
    "sample, linspace": {"prediction_type": "sample", "timestep_spacing": "linspace"},
    "half precision, KL autoencoder": {"vae": "kl", "half": True, "prediction_type": "v_prediction"},
}
CASES = [
    Case(PROMPT, NEGATIVE, DDIM, seed=1, steps=5, guidance_scale=3.0),
    Case(PROMPT, "", DDIM, seed=2, steps=4, guidance_scale=1.0),
    Case("", "", DDIM, seed=3, steps=3, guidance_scale=7.5, eta=0.8),
    Case(PROMPT, NEGATIVE, EULER, seed=4, steps=5, guidance_scale=3.0),
    Case(PROMPT, NEGATIVE, EULER, seed=5, steps=4, guidance_scale=0.0),
    Case(PROMPT, NEGATIVE, DDIM, seed=6, steps=7, guidance_scale=3.0, strength=0.5),
    Case(PROMPT, NEGATIVE, EULER, seed=7, steps=7, guidance_scale=3.0, strength=0.8),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As many as the worker uses: sums split over two threads differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", CHECKPOINTS)
async def test_final_latents_equal_those_of_diffusers(kind: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", **CHECKPOINTS[kind])
    reference = DiffusersReference(checkpoint)
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        async with serve(checkpoint, Path(folder)) as served:
            worker = WorkerUnderTest(served.channel, (await await_serving(served.channel)).held)

            differences = {case: await difference(worker, reference, case) for case in CASES}

    assert max(differences.values()) <= 1e-4, differences
    assert all(value == 0.0 for case, value in differences.items() if case.strength is None), differences
