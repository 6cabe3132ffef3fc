"""Starts: a latent resumed, an image re-noised, and the order of draws from the seed."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from pentimento.diffusion.denoising import DenoisingRequest, ImageStart, LatentStart, NoiseStart, prepare, schedule_for
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.images import latent_from_bytes, latent_to_bytes
from pentimento.diffusion.prompts import PromptMemo
from pentimento.diffusion.schedulers import first_img2img_step, nearest_step
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import GenerationSpec, NoiseForm, Scheduler, SigmaSpacing
from tests.unit.diffusion.specs import SPEC, denoise, run_steps, spec_with


def stored_latent(model: DiffusionModel, spec: GenerationSpec, step: int) -> Tensor:
    """Return the latent before `step`, through the bytes of a cache."""
    denoising = prepare(model, PromptMemo(model, 8), DenoisingRequest(spec, NoiseStart()))
    run_steps(model, denoising, until=step)
    data = latent_to_bytes(denoising.schedule.to_variance_preserving(denoising.state))
    return latent_from_bytes(data, model.latent_shape(spec.width_px, spec.height_px))


@pytest.mark.parametrize("step", [1, 3, 7])
@pytest.mark.parametrize(
    ("loaded", "scheduler", "tolerance"),
    [("model", Scheduler.DDIM, 0.0), ("flow_model", Scheduler.FLOW_MATCH_EULER, 0.0), ("model", Scheduler.EULER, 1e-4)],
)
def test_resumed_latent_gives_uninterrupted_run(
    loaded: str, scheduler: Scheduler, tolerance: float, step: int, request: pytest.FixtureRequest
) -> None:
    found, spec = request.getfixturevalue(loaded), spec_with(scheduler=scheduler)
    whole = denoise(found, DenoisingRequest(spec, NoiseStart()))

    resumed = denoise(found, DenoisingRequest(spec, LatentStart(stored_latent(found, spec, step), step)))

    torch.testing.assert_close(resumed, whole, rtol=0, atol=tolerance)


def test_resumed_multistep_sampler_differs_by_one_first_order_step(xl_model: DiffusionModel) -> None:
    spec = spec_with(scheduler=Scheduler.DPM_SOLVER_PP_2M, num_inference_steps=20)
    whole = denoise(xl_model, DenoisingRequest(spec, NoiseStart()))

    resumed = denoise(xl_model, DenoisingRequest(spec, LatentStart(stored_latent(xl_model, spec, 10), 10)))

    assert not torch.equal(resumed, whole)
    assert (resumed - whole).abs().max() <= 0.1


@pytest.mark.parametrize("step", [0, 2, 5])
def test_image_is_re_noised_in_its_models_form(any_model: DiffusionModel, step: int) -> None:
    pixels = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(3)) * 2 - 1
    for scheduler in any_model.info.schedulers:
        spec = spec_with(scheduler=scheduler)
        denoising = prepare(any_model, PromptMemo(any_model, 8), DenoisingRequest(spec, ImageStart(pixels, step)))
        generator = torch.Generator().manual_seed(spec.seed)
        with torch.inference_mode():
            clean = any_model.encode_image(pixels, generator)
        noise = torch.randn(clean.shape, generator=generator)

        expected = re_noised(any_model.info.noise_form, clean, noise, denoising.schedule.sigmas[step])

        stored = denoising.schedule.to_variance_preserving(denoising.state)
        assert denoising.state.step_index == step
        torch.testing.assert_close(stored, expected, rtol=0, atol=1e-5)


def test_image_at_the_last_level_runs_no_step(any_model: DiffusionModel) -> None:
    pixels = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(3)) * 2 - 1
    for scheduler in any_model.info.schedulers:
        spec = spec_with(scheduler=scheduler)
        latent = denoise(any_model, DenoisingRequest(spec, ImageStart(pixels, spec.num_inference_steps)))

        with torch.inference_mode():
            clean = any_model.encode_image(pixels, torch.Generator().manual_seed(spec.seed))
        torch.testing.assert_close(latent, clean, rtol=0, atol=0)


def re_noised(form: NoiseForm, clean: Tensor, noise: Tensor, noise_to_signal: float) -> Tensor:
    """Apply MoDM's equation 2, or its DDPM form, for a ratio of noise to signal; infinite at the start of a flow."""
    if form is NoiseForm.FLOW_MATCHING:
        sigma = 1.0 - 1.0 / (1.0 + noise_to_signal)
        return sigma * noise + (1.0 - sigma) * clean
    abar = 1.0 / (1.0 + noise_to_signal**2)
    return float(abar**0.5) * clean + float((1.0 - abar) ** 0.5) * noise


def test_other_seed_changes_only_images_of_renoised_latents(model: DiffusionModel) -> None:
    latent = stored_latent(model, SPEC, 7)
    seeds = [spec_with(seed=seed) for seed in (1, 2)]

    resumed = [denoise(model, DenoisingRequest(spec, LatentStart(latent, 7))) for spec in seeds]
    again = [
        denoise(model, DenoisingRequest(spec, LatentStart(latent, 4, bridge=(4, 5, 6, 7))))
        for spec in (*seeds, seeds[0])
    ]

    assert torch.equal(*resumed)
    assert not torch.equal(again[0], again[1])
    assert torch.equal(again[0], again[2])


def test_donor_of_same_seed_gets_other_noise(model: DiffusionModel) -> None:
    stored = torch.zeros(model.latent_shape(SPEC.width_px, SPEC.height_px))
    request = DenoisingRequest(SPEC, LatentStart(stored, 1, bridge=tuple(range(1, 8))))

    added = prepare(model, PromptMemo(model, 8), request).state.latent
    donors = prepare(model, PromptMemo(model, 8), DenoisingRequest(SPEC, NoiseStart())).state.latent

    # For two independent vectors of 256 numbers it exceeds 0.25 once in ten thousand times; for equal ones it is 1.
    assert abs(torch.cosine_similarity(added.flatten(), donors.flatten(), dim=0)) < 0.5


def test_resumed_latent_is_finished_under_the_new_prompt(model: DiffusionModel) -> None:
    latent = stored_latent(model, SPEC, 2)

    other = denoise(model, DenoisingRequest(spec_with(prompt="a blue square"), LatentStart(latent, 2)))

    assert not torch.equal(other, denoise(model, DenoisingRequest(SPEC, LatentStart(latent, 2))))


def test_nearest_step_is_of_same_noise_level_or_none(model: DiffusionModel) -> None:
    donor = schedule_for(model, spec_with(num_inference_steps=50))
    target = schedule_for(model, spec_with(num_inference_steps=25))
    between = (target.sigmas[3] * target.sigmas[4]) ** 0.5

    assert nearest_step(target, donor.sigmas[9]) == 4
    assert nearest_step(target, between) is None


@pytest.mark.parametrize(
    ("strength", "first", "first_of_flow"), [(1.0, 0, 0), (0.5, 4, 4), (0.49, 5, 4), (0.125, 7, 7)]
)
def test_first_img2img_step_is_that_of_diffusers(strength: float, first: int, first_of_flow: int) -> None:
    assert first_img2img_step(8, strength, NoiseForm.VARIANCE_PRESERVING) == first
    assert first_img2img_step(8, strength, NoiseForm.FLOW_MATCHING) == first_of_flow


def test_seed_fixes_every_draw_of_a_stochastic_sampler(model: DiffusionModel) -> None:
    request = DenoisingRequest(spec_with(eta=0.7), NoiseStart())

    assert torch.equal(denoise(model, request), denoise(model, request))


def test_schedule_for_spacing_spaces_levels(model: DiffusionModel) -> None:
    spec = spec_with(scheduler=Scheduler.EULER, num_inference_steps=10)
    own, spaced = schedule_for(model, spec), schedule_for(model, replace(spec, sigma_spacing=SigmaSpacing.EXPONENTIAL))
    ratios = [high / low for high, low in pairwise(spaced.sigmas)]

    assert (spaced.sigmas[0], spaced.sigmas[-1]) == pytest.approx((own.sigmas[0], own.sigmas[-1]))
    assert ratios == pytest.approx([ratios[0]] * 9, rel=1e-4)
    assert own.sigmas != spaced.sigmas


def test_more_steps_than_the_training_schedule_has_are_refused(model: DiffusionModel) -> None:
    with pytest.raises(InvalidArgument, match="num_inference_steps"):
        schedule_for(model, spec_with(num_inference_steps=1000))
