"""Compare a worker's latents, through the real service, with diffusers' pipelines: every family, checkpoint, scheduler.

Masked images start from the noised image and from noise alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler

from lab.fixtures.checkpoints import (
    T5_TOKENS,
    write_checkpoint,
    write_flow_checkpoint,
    write_xl_checkpoint,
)
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.flow_checkpoints import (
    write_flux_2_checkpoint,
    write_flux_checkpoint,
    write_klein_checkpoint,
    write_qwen_image_checkpoint,
    write_z_image_checkpoint,
)
from lab.fixtures.sana_checkpoints import write_sana_checkpoint
from pentimento.domain.generation import Scheduler
from tests.golden.unet_worker.comparison import compare
from tests.support.torch_threads import one_thread  # noqa: F401 (a fixture of this module)

PROMPT, NEGATIVE = "a red circle", "blurred"

CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "epsilon, leading, scaled linear": partial(write_checkpoint, beta_schedule="scaled_linear", set_alpha_to_one=False),
    "epsilon, clipped and without an offset, which is corrected": partial(
        write_checkpoint, clip_sample=True, steps_offset=0
    ),
    "v, trailing, cosine": partial(
        write_checkpoint, prediction_type="v_prediction", timestep_spacing="trailing", beta_schedule="squaredcos_cap_v2"
    ),
    "v, trailing, zero terminal SNR": partial(
        write_checkpoint, prediction_type="v_prediction", timestep_spacing="trailing", rescale_betas_zero_snr=True
    ),
    "sample, linspace": partial(write_checkpoint, prediction_type="sample", timestep_spacing="linspace"),
    "half precision, KL autoencoder": partial(write_checkpoint, vae="kl", half=True, prediction_type="v_prediction"),
    "XL, epsilon": partial(write_xl_checkpoint, beta_schedule="scaled_linear"),
    "XL, DPM-Solver++, Karras levels": partial(
        write_xl_checkpoint, sampler=DPMSolverMultistepScheduler, use_karras_sigmas=True, solver_type="heun"
    ),
    "XL, v, empty prompts encoded": partial(write_xl_checkpoint, prediction_type="v_prediction", zeros=False),
    "XL, clipped, normalised by channel": partial(
        write_xl_checkpoint,
        clip_sample=True,
        vae={"latents_mean": [0.1, -0.2, 0.3, 0.0], "latents_std": [0.9, 1.1, 1.0, 0.8]},
    ),
    "flow without T5": write_flow_checkpoint,
    "flow, no tokens of T5": partial(write_flow_checkpoint, max_sequence_length=0, shift=1.0),
    "flow, shifted by the size of the image": partial(
        write_flow_checkpoint, max_sequence_length=0, shifted_by_size=True
    ),
    "flow with T5, dual attention": partial(
        write_flow_checkpoint, t5=True, max_sequence_length=T5_TOKENS, dual_layers=(0,)
    ),
}


def cases_for(schedulers: Sequence[Scheduler]) -> list[Case]:
    """Return cases of every scheduler from noise and from an image. Cases that no scheduler affects (an empty negative
    prompt, no guidance) have only the first. `benchmarks.golden_families` has every case."""
    stochastic = [Case("", "", Scheduler.DDIM, seed=3, steps=3, guidance_scale=7.5, eta=0.8)]
    guided_otherwise = [
        Case(PROMPT, "", schedulers[0], seed=2, steps=3, guidance_scale=2.0),
        Case(PROMPT, "", schedulers[0], seed=4, steps=4, guidance_scale=1.0),
        Case(PROMPT, NEGATIVE, schedulers[0], seed=5, steps=2, guidance_scale=3.0, clip_skip=1),
    ]
    each = [
        case
        for scheduler in schedulers
        for case in (
            Case(PROMPT, NEGATIVE, scheduler, seed=1, steps=5, guidance_scale=3.0),
            Case(PROMPT, NEGATIVE, scheduler, seed=6, steps=7, guidance_scale=3.0, strength=0.5),
        )
    ]
    return [*each, *guided_otherwise, *(stochastic if Scheduler.DDIM in schedulers else [])]


@pytest.mark.parametrize("kind", CHECKPOINTS)
async def test_final_latents_equal_those_of_diffusers(kind: str, tmp_path: Path) -> None:
    count, differences = await compare(CHECKPOINTS[kind](tmp_path / "model"), cases_for)

    assert len(differences) >= 0.9 * count  # diffusers' ancestral sampler meets NaN in one case
    assert all(value == 0.0 for value in differences.values()), differences


FLUX: dict[str, Callable[[Path], Path]] = {
    "dev": write_flux_checkpoint,
    "dev, an odd size": partial(write_flux_checkpoint, size=(24, 40)),
    "schnell": partial(write_flux_checkpoint, takes_scale=False),
    "half precision": partial(write_flux_checkpoint, half=True),
}


def flux_cases(schedulers: Sequence[Scheduler]) -> list[Case]:
    """Guidance scales that other families take two rows for, one that they take none for; one step, and an image."""
    return [
        Case(PROMPT, NEGATIVE, schedulers[0], seed=1, steps=5, guidance_scale=3.5),
        Case("", "", schedulers[0], seed=2, steps=4, guidance_scale=0.0),
        Case(PROMPT, "", schedulers[0], seed=3, steps=1, guidance_scale=7.0),
        Case(PROMPT, "", schedulers[0], seed=4, steps=7, guidance_scale=2.0, strength=0.5),
    ]


@pytest.mark.parametrize("kind", FLUX)
async def test_final_latents_of_flux_equal_those_of_diffusers(kind: str, tmp_path: Path) -> None:
    _, differences = await compare(FLUX[kind](tmp_path / "model"), flux_cases)

    assert len(differences) == 4
    assert all(value == 0.0 for value in differences.values()), differences


WITH_LANGUAGE_MODELS: dict[str, Callable[[Path], Path]] = {
    "FLUX.2 [klein], an odd size": partial(write_klein_checkpoint, size=(24, 40)),
    "FLUX.2 [klein]'s base": partial(write_klein_checkpoint, is_distilled=False),
    "FLUX.2 [klein]'s base, half precision": partial(write_klein_checkpoint, is_distilled=False, half=True),
    "FLUX.2 [dev], an odd size": partial(write_flux_2_checkpoint, size=(24, 40)),
    "FLUX.2 [dev], half precision": partial(write_flux_2_checkpoint, half=True),
    "Z-Image, an odd size": partial(write_z_image_checkpoint, size=(24, 40)),
    "Z-Image, half precision": partial(write_z_image_checkpoint, half=True),
    "Qwen-Image, an odd size": partial(write_qwen_image_checkpoint, size=(24, 40)),
    "SANA": write_sana_checkpoint,
    "SANA, Euler": partial(write_sana_checkpoint, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0)),
    "SANA-Sprint": partial(write_sana_checkpoint, is_sprint=True),
}


@pytest.mark.parametrize("kind", WITH_LANGUAGE_MODELS)
async def test_latents_with_language_models_equal_those_of_diffusers(kind: str, tmp_path: Path) -> None:
    _, differences = await compare(WITH_LANGUAGE_MODELS[kind](tmp_path / "model"), flux_cases)

    assert len(differences) == 4
    assert all(value <= 1e-4 for value in differences.values()), differences


MASKED: dict[str, Callable[[Path], Path]] = {
    "epsilon, KL autoencoder": partial(write_checkpoint, vae="kl"),
    "v, trailing": partial(write_checkpoint, prediction_type="v_prediction", timestep_spacing="trailing"),
    "XL": write_xl_checkpoint,
    # diffusers' pipeline takes no other number of channels.
    "flow": partial(write_flow_checkpoint, channel_count=16),
    "FLUX": partial(write_flux_checkpoint, size=(40, 24)),
    "Z-Image": write_z_image_checkpoint,
    "Qwen-Image": write_qwen_image_checkpoint,
    "a network that sees masks": partial(write_checkpoint, sees_mask=True),
    "XL, a network that sees masks": partial(write_xl_checkpoint, sees_mask=True),
}


def masked_cases(schedulers: Sequence[Scheduler]) -> list[Case]:
    stochastic = [Case("a red circle", "", Scheduler.DDIM, 3, 3, 7.5, eta=0.8, strength=0.7, masked=True)]
    each = [
        Case("a red circle", "blurred", scheduler, seed=number, steps=7, strength=strength, masked=True)
        for number, strength in enumerate((0.5, 1.0))
        for scheduler in schedulers
    ]
    first = Case("a red circle", "", schedulers[0], seed=5, steps=4, strength=0.5, masked=True)
    forms = [replace(first, alpha_mask=True), replace(first, white_mask=True)]
    return [*each, *forms, *(stochastic if Scheduler.DDIM in schedulers else [])]


@pytest.mark.parametrize("kind", MASKED)
async def test_masked_latents_equal_those_of_diffusers(kind: str, tmp_path: Path) -> None:
    count, differences = await compare(MASKED[kind](tmp_path / "model"), masked_cases)

    assert len(differences) >= 0.8 * count  # diffusers' ancestral sampler meets NaN in some
    assert all(value <= 1e-4 for value in differences.values()), differences
