"""Test the model families through the real service: their cache, and ControlNets of SD3 in another process."""

import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from lab.fixtures.checkpoints import SIDE_PX, write_flow_checkpoint, write_flow_controlnet, write_xl_checkpoint
from lab.fixtures.controlled_generation import ControlledByDiffusers, ControlledCase, conditions_for
from lab.fixtures.controlnet_serving import ControlledByService, controlled_by_service
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.flow_checkpoints import (
    write_flux_checkpoint,
    write_klein_checkpoint,
    write_qwen_image_checkpoint,
    write_z_image_checkpoint,
)
from lab.fixtures.sana_checkpoints import write_sana_checkpoint
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.domain.fleet import Capability
from pentimento.domain.generation import ControlNetSelection, FromImage, GenerationSpec, NoiseForm, Scheduler
from tests.integration.unet_worker.conftest import Served, serve
from tests.integration.unet_worker.requests import DONOR, GRANT, attempt, execute, from_latent, spec_with
from tests.support.calls import result_of

FAMILIES: dict[str, tuple[Callable[[Path], Path], NoiseForm]] = {
    "stable_diffusion_xl": (write_xl_checkpoint, NoiseForm.VARIANCE_PRESERVING),
    "stable_diffusion_3": (write_flow_checkpoint, NoiseForm.FLOW_MATCHING),
    "flux": (write_flux_checkpoint, NoiseForm.FLOW_MATCHING),
    "flux_2": (partial(write_klein_checkpoint, is_distilled=False), NoiseForm.FLOW_MATCHING),
    "z_image": (write_z_image_checkpoint, NoiseForm.FLOW_MATCHING),
    "qwen_image": (write_qwen_image_checkpoint, NoiseForm.FLOW_MATCHING),
    # Its own solver restarts at the first order, so a resumed image differs.
    "sana": (partial(write_sana_checkpoint, scheduler=FlowMatchEulerDiscreteScheduler()), NoiseForm.FLOW_MATCHING),
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=FAMILIES, scope="module", loop_scope="module")
async def lasting_worker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    write, _ = FAMILIES[request.param]
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        async with serve(write(tmp_path_factory.mktemp("family") / "model"), Path(folder)) as served:
            assert served.held.family == request.param
            yield served


@pytest.fixture
def family(shared_worker: Served) -> Served:
    return shared_worker


def spec_of(served: Served) -> GenerationSpec:
    return spec_with(scheduler=Scheduler(served.held.schedulers[0]))


async def test_a_resumed_latent_gives_the_same_image_in_fewer_steps(family: Served) -> None:
    spec = spec_of(family)
    whole = await result_of(execute(family, spec=spec, cache_grant=GRANT))

    resumed = await result_of(execute(family, spec=spec, attempt=attempt(2), start=from_latent(whole, 5)))

    assert resumed.image == whole.image
    assert (resumed.steps_run, resumed.steps_saved) == (3, 5)


async def test_cached_image_is_refined_in_its_form_of_noise(family: Served) -> None:
    spec, (_, form) = spec_of(family), FAMILIES[family.held.family]
    whole = await result_of(execute(family, spec=spec, cache_grant=GRANT))
    assert whole.captured.image is not None
    start = FromImage(whole.captured.image, 5, form, DONOR)

    refined = await result_of(execute(family, spec=spec, attempt=attempt(2), start=start))

    assert (refined.steps_run, refined.steps_saved, refined.notes) == (3, 5, ())
    other = next(candidate for candidate in NoiseForm if candidate is not form)
    with pytest.raises(InvalidArgument, match="noise_form"):
        await result_of(execute(family, spec=spec, attempt=attempt(3), start=replace(start, noise_form=other)))


async def test_scheduler_of_other_family_error_lists_supported_ones(family: Served) -> None:
    other = next(scheduler for scheduler in Scheduler if scheduler.value not in family.held.schedulers)

    with pytest.raises(InvalidArgument, match=family.held.schedulers[0]):
        await result_of(execute(family, spec=spec_with(scheduler=other)))


async def test_controlnets_and_pairs_are_offered_where_the_family_has_them(family: Served) -> None:
    offered = family.model.capabilities & {Capability.CONTROLNET, Capability.LATENT_PARALLEL}

    assert bool(offered) is family.held.family.startswith("stable_diffusion")
    if Capability.CONTROLNET not in offered:
        selection = ControlNetSelection("edges", b"image")
        with pytest.raises(NotFound, match="this worker cannot use the ControlNet 'edges'"):
            await result_of(execute(family, spec=replace(spec_of(family), controlnets=(selection,))))


CONDITIONS = conditions_for(2, SIDE_PX, SIDE_PX)


@dataclass
class Both:
    """Serve a model and its ControlNets, and run them by diffusers. One ControlNet gets the latent without the
    autoencoder's shift, the other with it: diffusers has one rule for all ControlNets of an image, so each runs
    separately there."""

    ours: ControlledByService
    theirs: dict[str, ControlledByDiffusers]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Both]:
    folder = tmp_path_factory.mktemp("flow")
    # Send residuals in parts through shared memory: those of a guided image take 24 KiB.
    model = write_flow_checkpoint(folder / "model", t5=True, max_sequence_length=12, num_layers=24)
    unshifted = write_flow_controlnet(folder / "unshifted", seed=1, num_layers=12)
    shifted = write_flow_controlnet(folder / "shifted", seed=2, num_layers=12, force_zeros_for_pooled_projection=False)
    theirs = {path.name: ControlledByDiffusers(model, [path]) for path in (unshifted, shifted)}
    async with controlled_by_service(model, [unshifted, shifted]) as ours:
        yield Both(ours, theirs)


@pytest.mark.parametrize(("name", "place", "guidance"), [("unshifted", 0, 4.0), ("shifted", 1, 1.0)])
async def test_a_controlled_image_is_that_of_diffusers(both: Both, name: str, place: int, guidance: float) -> None:
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
        # The first image sets the output's size; both ControlNets act.
        await both.ours.controlled(ControlledCase(case, (ControlSetting(),) * 2), [CONDITIONS[0], small])

    assert caught.value.violations[0].field == "spec.controlnets[1].conditioning_image"
