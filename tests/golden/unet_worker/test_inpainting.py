"""Masked pictures, through the real service, against diffusers' inpainting pipelines: every family, every scheduler
that is offered for it, from the noised image and from noise alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lab.fixtures.checkpoints import write_checkpoint, write_flow_checkpoint, write_xl_checkpoint
from lab.fixtures.diffusers_reference import Case
from pentimento.domain.generation import Scheduler
from tests.golden.unet_worker.comparison import compare
from tests.support.torch_threads import one_thread  # noqa: F401 (a fixture of this module)

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
    first = Case("a red circle", "", schedulers[0], seed=5, steps=4, strength=0.5, masked=True)
    forms = [replace(first, alpha_mask=True), replace(first, white_mask=True)]
    return [*each, *forms, *(stochastic if Scheduler.DDIM in schedulers else [])]


@pytest.mark.parametrize("kind", CHECKPOINTS)
async def test_final_latents_equal_those_of_diffusers(kind: str, tmp_path: Path) -> None:
    count, differences = await compare(CHECKPOINTS[kind](tmp_path / "model"), cases_for)

    assert len(differences) >= 0.8 * count  # diffusers' ancestral sampler meets NaN in some
    print(f"{kind}: {max(differences.values())}")
    assert all(value <= TOLERANCE for value in differences.values()), differences
