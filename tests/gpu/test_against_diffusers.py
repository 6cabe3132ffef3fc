"""Compare final latents on a GPU with diffusers' pipelines on the same GPU: every family, eager and as served by
default, with ControlNets in the engine's process."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.fixtures.checkpoints import (
    SIDE_PX,
    write_checkpoint,
    write_controlnet,
    write_flow_checkpoint,
    write_xl_checkpoint,
)
from lab.fixtures.controlled_generation import ControlledByDiffusers, ControlledByEngine, ControlledCase, conditions_for
from lab.fixtures.diffusers_reference import Case
from pentimento.devices.choices import CompileMode, DtypeChoice
from pentimento.diffusion.controlnets import PLAIN, ControlNetForm, ControlSetting
from pentimento.diffusion.engine import cuda_recorder, replaying
from pentimento.diffusion.kernels import kernels_for
from pentimento.domain.generation import Scheduler
from tests.golden.unet_worker.comparison import compare

pytestmark = pytest.mark.gpu

CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "epsilon": partial(write_checkpoint, beta_schedule="scaled_linear"),
    "v": partial(write_checkpoint, prediction_type="v_prediction", timestep_spacing="trailing"),
    "XL": write_xl_checkpoint,
    "flow": write_flow_checkpoint,
}
# The mode of passes, and the largest difference from diffusers' latents.
WAYS: dict[str, tuple[dict[str, Any], float]] = {
    "eager": ({"compile": CompileMode.OFF}, 1e-5),
    "as served": ({}, 1e-3),
}


def cases_for(schedulers: Sequence[Scheduler]) -> list[Case]:
    return [
        case
        for scheduler in schedulers
        for case in (
            Case("a red circle", "blurred", scheduler, seed=1, steps=6),
            Case("a red circle", "", scheduler, seed=2, steps=6, guidance_scale=1.0),
            Case("a red circle", "", scheduler, seed=3, steps=6, strength=0.5),
        )
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", CHECKPOINTS)
async def test_final_latents_equal_those_of_diffusers(kind: str, way: str, tmp_path: Path) -> None:
    settings, tolerance = WAYS[way]
    checkpoint = CHECKPOINTS[kind](tmp_path / "model")

    count, differences = await compare(checkpoint, cases_for, "cuda", dtype=DtypeChoice.FLOAT32, **settings)

    print(f"{kind}, {way}: {max(differences.values())}")
    assert len(differences) >= 0.9 * count
    assert all(value <= tolerance for value in differences.values()), differences


@pytest.mark.parametrize("way", ["plain", "as served"])
@pytest.mark.parametrize("xl", [False, True], ids=["SD", "XL"])
def test_controlled_latents_equal_those_of_diffusers(xl: bool, way: str, tmp_path: Path) -> None:
    """The ControlNets' thread records graphs while the engine's thread computes."""
    model = (write_xl_checkpoint if xl else write_checkpoint)(tmp_path / "model")
    controlnets = [write_controlnet(tmp_path / "control", xl=xl, seed=1)]
    form = PLAIN
    if way == "as served":
        device = torch.device("cuda")
        form = ControlNetForm(kernels_for(device), replaying(cuda_recorder(device)))
    engine = ControlledByEngine(model, controlnets, "cuda", form)
    case = ControlledCase(Case("a red circle", "blurred", Scheduler.DDIM, seed=3, steps=8), (ControlSetting(),))
    conditions = conditions_for(1, SIDE_PX, SIDE_PX)
    try:
        ours = engine.controlled(case, conditions).cpu()
    finally:
        engine.close()

    theirs = ControlledByDiffusers(model, controlnets, "cuda").controlled(case, conditions)

    print(f"{way}: {(ours - theirs).abs().max().item()}")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4 if way == "plain" else 1e-3)
