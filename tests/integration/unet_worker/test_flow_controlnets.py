"""Pictures of SD3's class under ControlNets in a process of their own: the worker encodes what those are told."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
import torch

from lab.fixtures.checkpoints import SIDE_PX, write_flow_checkpoint, write_flow_controlnet
from lab.fixtures.controlled_generation import ControlledByDiffusers, ControlledCase, conditions_for
from lab.fixtures.controlnet_serving import ControlledByService, controlled_by_service
from lab.fixtures.diffusers_reference import Case
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONDITIONS = conditions_for(2, SIDE_PX, SIDE_PX)


@dataclass
class Both:
    """The same model and ControlNets, served and by diffusers. One ControlNet sees its latent without the autoencoder's
    shift, the other with it: diffusers has one rule for all of a picture, so each stands alone there."""

    ours: ControlledByService
    theirs: dict[str, ControlledByDiffusers]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Both]:
    folder = tmp_path_factory.mktemp("flow")
    # Residuals that go through memory, in parts: those of a guided picture take 24 KiB.
    model = write_flow_checkpoint(folder / "model", t5=True, max_sequence_length=12, num_layers=24)
    unshifted = write_flow_controlnet(folder / "unshifted", seed=1, num_layers=12)
    shifted = write_flow_controlnet(folder / "shifted", seed=2, num_layers=12, force_zeros_for_pooled_projection=False)
    theirs = {path.name: ControlledByDiffusers(model, [path]) for path in (unshifted, shifted)}
    async with controlled_by_service(model, [unshifted, shifted]) as ours:
        yield Both(ours, theirs)


@pytest.mark.parametrize("guidance", [1.0, 4.0])
@pytest.mark.parametrize(("name", "place"), [("unshifted", 0), ("shifted", 1)])
async def test_a_controlled_picture_is_that_of_diffusers(both: Both, name: str, place: int, guidance: float) -> None:
    torch.set_num_threads(1)
    case = Case("a red circle", "", Scheduler.FLOW_MATCH_EULER, seed=3, steps=5, guidance_scale=guidance)
    controlled = ControlledCase(case, (ControlSetting(0.8),))

    found = await both.ours.only(place).controlled(controlled, CONDITIONS[:1])

    theirs = both.theirs[name].controlled(controlled, CONDITIONS[:1])
    assert float((found - theirs).abs().max()) <= 1e-4
    free = await both.ours.controlled(ControlledCase(case, ()), CONDITIONS[:1])
    assert float((found - free).abs().max()) > 1e-3


async def test_an_image_of_another_size_is_refused_by_name(both: Both) -> None:
    case = Case("a red circle", "", Scheduler.FLOW_MATCH_EULER, seed=3, steps=2, guidance_scale=1.0)
    small = CONDITIONS[0][:, :, : SIDE_PX // 2, : SIDE_PX // 2]

    with pytest.raises(InvalidArgument) as caught:
        # The first image says the picture's size; both ControlNets act.
        await both.ours.controlled(ControlledCase(case, (ControlSetting(),) * 2), [CONDITIONS[0], small])

    assert caught.value.violations[0].field == "spec.controlnets[1].conditioning_image"
