"""Denoise images that leave out steps, from their start or midway, alone and in batches."""

from dataclasses import dataclass, field

import pytest
import torch

from pentimento.diffusion.denoising import DenoisingRequest, LatentStart, NoiseStart, prepare, thin
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.families.model import NO_CONTROL, ControlResiduals, DenoiserInput
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler
from tests.unit.diffusion.engine.loops import Loop
from tests.unit.diffusion.engine.test_pairing import Peer
from tests.unit.diffusion.specs import denoise, spec_with

STEPS = 12
THINNED = (4, 7, 10)
SCHEDULERS = [Scheduler.DDIM, Scheduler.EULER, Scheduler.EULER_ANCESTRAL, Scheduler.DPM_SOLVER_PP_2M]


def asked(seed: int = 7, thinned: tuple[int, ...] = (), **changes: object) -> DenoisingRequest:
    spec = spec_with(**{"seed": seed, "prompt": f"picture {seed}", "num_inference_steps": STEPS, **changes})
    return DenoisingRequest(spec, NoiseStart(), thinned_steps=thinned)


@pytest.mark.parametrize("scheduler", [*SCHEDULERS, Scheduler.FLOW_MATCH_EULER])
def test_thinned_images_in_batch_equal_single_runs(scheduler: Scheduler, request: pytest.FixtureRequest) -> None:
    is_flow = scheduler is Scheduler.FLOW_MATCH_EULER
    found: DiffusionModel = request.getfixturevalue("flow_model" if is_flow else "model")
    other = scheduler if is_flow else Scheduler.DDIM
    loop = Loop(found)
    requests = [
        asked(1, scheduler=scheduler),
        asked(2, THINNED, scheduler=scheduler),
        asked(3, (2, 11), scheduler=other),
    ]
    added = [loop.add(one) for one in requests]

    loop.run()

    for one in added:
        wanted = denoise(found, one.job.request)
        torch.testing.assert_close(one.heard.latent, wanted, rtol=0, atol=1e-4 if is_flow else 0.0)
    assert not torch.equal(added[1].heard.latent, denoise(found, asked(2, scheduler=scheduler)))
    assert added[1].heard.steps == [1, 2, 3, 4, 7, 10, 12]
    assert (added[1].finished.taken_count, added[1].finished.thinned_steps) == (7, THINNED)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_thinning_on_the_way_is_thinning_from_the_start(model: DiffusionModel, scheduler: Scheduler) -> None:
    loop = Loop(model)
    late, other = loop.add(asked(2, scheduler=scheduler)), loop.add(asked(3))
    loop.tick(3)
    late.job.thin(THINNED)
    loop.run()

    assert torch.equal(late.heard.latent, denoise(model, asked(2, THINNED, scheduler=scheduler)))
    assert late.finished.thinned_steps == THINNED
    assert (other.finished.taken_count, other.finished.thinned_steps) == (STEPS, ())


def test_asking_at_the_very_step_is_in_time_and_after_it_too_late(model: DiffusionModel) -> None:
    loop = Loop(model)
    just, late, twice = (loop.add(asked(seed)) for seed in (1, 2, 3))
    loop.tick(4)
    just.job.thin(THINNED)
    twice.job.thin((6, 8))
    loop.tick()
    late.job.thin(THINNED)
    twice.job.thin((8, 11))
    loop.run()

    assert [one.finished.thinned_steps for one in (just, late, twice)] == [THINNED, (), (6, 8)]
    assert torch.equal(late.heard.latent, denoise(model, asked(2)))


def test_steps_that_are_none_of_the_schedule_end_their_image_alone(model: DiffusionModel) -> None:
    loop = Loop(model)
    bad, good = loop.add(asked(1)), loop.add(asked(2))
    loop.tick()
    bad.job.thin((5, STEPS))
    loop.run()

    assert isinstance(bad.heard.end, InvalidArgument)
    assert good.finished.taken_count == STEPS


def test_a_resumed_latent_is_thinned_behind_its_start_and_not_before(model: DiffusionModel) -> None:
    latent = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    spec = spec_with(num_inference_steps=STEPS, scheduler=Scheduler.DPM_SOLVER_PP_2M)
    loop = Loop(model)
    behind = loop.add(DenoisingRequest(spec, LatentStart(latent, 3), thinned_steps=THINNED))
    before = loop.add(DenoisingRequest(spec, LatentStart(latent, 5), thinned_steps=THINNED))

    loop.run()

    assert behind.heard.steps == [4, 7, 10, 12]
    assert behind.finished.taken_count == 4
    assert isinstance(before.heard.end, InvalidArgument)


def test_latents_are_kept_up_to_thinning_and_previews_keep_interval(model: DiffusionModel) -> None:
    loop = Loop(model)
    spec = spec_with(num_inference_steps=STEPS)
    request = DenoisingRequest(spec, NoiseStart(), frozenset({2, 4, 7, 10}), 3, thinned_steps=THINNED)
    added = loop.add(request)
    whole = loop.add(DenoisingRequest(spec, NoiseStart(), frozenset({2, 4, 7, 10})))

    loop.run()

    assert sorted(added.heard.latents) == [2, 4]
    assert torch.equal(added.heard.latents[4], whole.heard.latents[4])
    assert added.heard.previews == [3, 7, 10]


def test_a_peer_computes_the_halves_of_the_steps_that_are_taken(model: DiffusionModel) -> None:
    loop, peer = Loop(model), Peer(Loop(model))
    request = DenoisingRequest(spec_with(num_inference_steps=6), NoiseStart(), peer=peer, thinned_steps=(2, 4))
    added = loop.add(request)

    loop.run()

    assert peer.asked == [0, 1, 2, 4]
    assert added.finished.paired_step_count == 4
    torch.testing.assert_close(added.heard.latent, denoise(model, request), rtol=0, atol=1e-4)


@dataclass
class Control:
    """Return no residuals, and record the steps and timesteps of requests."""

    asked: list[tuple[int, float]] = field(default_factory=list)

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        self.asked.append((step_index, float(inputs.timesteps[0])))

    def take(self, step_index: int) -> ControlResiduals:
        return NO_CONTROL


def test_controlnet_gets_requests_for_taken_steps(model: DiffusionModel) -> None:
    control, loop = Control(), Loop(model)
    spec = spec_with(num_inference_steps=STEPS)
    added = loop.add(DenoisingRequest(spec, NoiseStart(), control=control, thinned_steps=THINNED))

    loop.run()

    schedule = prepare(model, PromptMemo(model, 8), asked(thinned=THINNED)).schedule
    assert control.asked == [(step, float(schedule.timesteps[step])) for step in (0, 1, 2, 3, *THINNED)]
    assert added.finished.taken_count == 7


@torch.inference_mode()
def test_a_denoising_is_thinned_once(model: DiffusionModel) -> None:
    denoising = prepare(model, PromptMemo(model, 8), asked())

    assert thin(model, denoising, THINNED)
    assert not thin(model, denoising, (5, 9))
    assert denoising.schedule.order.thinned == THINNED
