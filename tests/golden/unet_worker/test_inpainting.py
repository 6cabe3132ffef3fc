"""Masked pictures, through the real service, against diffusers' inpainting pipelines: every family, every scheduler
that is offered for it, from the noised image and from noise alone."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from pentimento.domain.generation import Scheduler
from pentimento.testing.checkpoints import write_checkpoint, write_flow_checkpoint, write_xl_checkpoint
from pentimento.testing.diffusers_reference import Case, DiffusersReference
from pentimento.testing.worker_under_test import WorkerUnderTest, await_serving, difference
from tests.integration.unet_worker.conftest import serve

TOLERANCE = 1e-4

CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "epsilon, KL autoencoder": partial(write_checkpoint, vae="kl"),
    "v, trailing": partial(write_checkpoint, prediction_type="v_prediction", timestep_spacing="trailing"),
    "XL": write_xl_checkpoint,
    # diffusers' pipeline takes no other number of channels.
    "flow": partial(write_flow_checkpoint, channel_count=16),
    "a network that sees masks": partial(write_checkpoint, sees_mask=True),
    "XL, a network that sees masks": partial(write_xl_checkpoint, sees_mask=True),
}


def cases_for(schedulers: Sequence[Scheduler]) -> list[Case]:
    stochastic = [Case("a red circle", "", Scheduler.DDIM, 3, 3, 7.5, eta=0.8, strength=0.7, masked=True)]
    each = [
        Case("a red circle", "blurred", scheduler, seed=number, steps=6, strength=strength, masked=True)
        for number, strength in enumerate((0.5, 1.0))
        for scheduler in schedulers
    ]
    return [*each, *(stochastic if Scheduler.DDIM in schedulers else [])]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As many as the worker uses: sums split over two threads differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", CHECKPOINTS)
async def test_final_latents_equal_those_of_diffusers(kind: str, tmp_path: Path) -> None:
    checkpoint = CHECKPOINTS[kind](tmp_path / "model")
    reference = DiffusersReference(checkpoint)
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        async with serve(checkpoint, Path(folder)) as served:
            worker = WorkerUnderTest(served.channel, (await await_serving(served.channel)).held)
            cases = cases_for([Scheduler(name) for name in worker.held.schedulers])

            answers = {case: await difference(worker, reference, case) for case in cases}

    differences = {case: value for case, value in answers.items() if value is not None}
    assert len(differences) >= 0.8 * len(cases)  # diffusers' ancestral sampler meets NaN in some
    print(f"{kind}: {max(differences.values())}")
    assert all(value <= TOLERANCE for value in differences.values()), differences
