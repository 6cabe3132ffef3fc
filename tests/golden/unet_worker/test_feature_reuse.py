"""Compare steps that reuse deep features, through the real service, with diffusers' pipelines with hooks."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from lab.fixtures.checkpoints import write_checkpoint, write_flow_checkpoint, write_xl_checkpoint
from lab.fixtures.diffusers_reference import Case
from pentimento.domain.generation import Scheduler
from tests.golden.unet_worker.comparison import compare
from tests.support.torch_threads import one_thread  # noqa: F401 (a fixture of this module)

CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "stable diffusion, v, trailing": partial(
        write_checkpoint, prediction_type="v_prediction", timestep_spacing="trailing"
    ),
    "XL, epsilon": partial(write_xl_checkpoint, beta_schedule="scaled_linear"),
    "flow": partial(write_flow_checkpoint, max_sequence_length=0),
}


def reusing_cases(schedulers: Sequence[Scheduler]) -> list[Case]:
    # A step of Heun is two passes, which the hooks count.
    last = [one for one in schedulers if one is not Scheduler.HEUN][-1]
    return [
        Case("a red circle", "blurred", schedulers[0], seed=1, steps=8, full_steps=(1, 4, 6)),
        Case("a red circle", "", last, seed=2, steps=6, guidance_scale=1.0, full_steps=(0, 3)),
        Case("a red circle", "blurred", schedulers[0], seed=1, steps=8),
    ]


@pytest.mark.parametrize("kind", CHECKPOINTS)
async def test_reused_features_equal_hooks_on_diffusers(kind: str, tmp_path: Path) -> None:
    _, differences = await compare(CHECKPOINTS[kind](tmp_path / "model"), reusing_cases)

    assert all(value <= 1e-4 for value in differences.values()), differences
