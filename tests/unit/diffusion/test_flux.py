"""FLUX in the step engine: one row with the guidance scale as an input, packed latents, a schedule by image size."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import FluxPipeline

from lab.fixtures.checkpoints import SIDE_PX, T5_TOKENS
from lab.fixtures.flow_checkpoints import write_flux_checkpoint
from pentimento.devices.choices import DtypeChoice
from pentimento.diffusion.allow_list import FAMILIES
from pentimento.diffusion.denoising import DenoisingRequest, ImageStart, LatentStart, NoiseStart, schedule_for
from pentimento.diffusion.device import choose_dtype
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.families.packing import packed, unpacked
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler
from pentimento.domain.prompt_syntax import PromptSyntax, parse_prompt
from tests.unit.diffusion.engine.loops import Loop
from tests.unit.diffusion.specs import denoise, load, spec_with

FLOW = spec_with(scheduler=Scheduler.FLOW_MATCH_EULER)


def latent_of(seed: int) -> torch.Tensor:
    return torch.randn(1, 4, SIDE_PX // 4, SIDE_PX // 4, generator=torch.Generator().manual_seed(seed))


def test_packed_latents_equal_diffusers() -> None:
    latents = torch.randn(2, 4, 6, 10)

    tokens = packed(latents)

    assert torch.equal(tokens, FluxPipeline._pack_latents(latents, 2, 4, 6, 10))
    assert torch.equal(unpacked(tokens, 6, 10), latents)


def test_batch_of_mixed_scales_steps_and_starts_gives_images_alone(flux_model: DiffusionModel) -> None:
    pixels = torch.rand(1, 3, SIDE_PX, SIDE_PX, generator=torch.Generator().manual_seed(3)) * 2 - 1
    mask = torch.zeros(1, 1, SIDE_PX, SIDE_PX)
    mask[..., : SIDE_PX // 2] = 1.0
    requests = [
        DenoisingRequest(replace(FLOW, guidance_scale=3.5), NoiseStart(), preview_interval_steps=2),
        DenoisingRequest(replace(FLOW, guidance_scale=0.0, seed=8, num_inference_steps=5), NoiseStart()),
        DenoisingRequest(replace(FLOW, guidance_scale=1.0, prompt="other"), LatentStart(latent_of(1), 3)),
        DenoisingRequest(replace(FLOW, guidance_scale=7.0), ImageStart(pixels, 2, mask)),
        DenoisingRequest(replace(FLOW, guidance_scale=7.0), NoiseStart(), thinned_steps=(2, 4, 7)),
    ]
    loop = Loop(flux_model, max_batch=8)

    added = [loop.add(request) for request in requests]
    loop.run()

    assert max(batch.request_count for batch in loop.observer.batches) == len(requests)
    for one, request in zip(added, requests, strict=True):
        torch.testing.assert_close(one.heard.latent, denoise(flux_model, request), rtol=0, atol=1e-5)
    assert added[0].heard.previews == [2, 4, 6]


def test_resumed_latent_gives_the_bits_of_the_whole_run(flux_model: DiffusionModel) -> None:
    loop = Loop(flux_model)
    whole = loop.add(DenoisingRequest(FLOW, NoiseStart(), capture_steps=frozenset({3})))
    loop.run()

    resumed = denoise(flux_model, DenoisingRequest(FLOW, LatentStart(whole.heard.latents[3], 3)))

    assert torch.equal(resumed, whole.heard.latent)


@pytest.mark.parametrize("takes_scale", [True, False])
def test_guidance_scale_acts_where_the_network_takes_it(takes_scale: bool, tmp_path: Path) -> None:
    model = load(write_flux_checkpoint(tmp_path / "model", takes_scale=takes_scale))

    low, high = (
        denoise(model, DenoisingRequest(replace(FLOW, guidance_scale=scale), NoiseStart())) for scale in (1.0, 7.0)
    )

    assert torch.equal(low, high) is not takes_scale


@pytest.mark.parametrize(("takes_scale", "count"), [(True, 512), (False, 256)])
def test_prompt_has_the_tokens_of_index_or_of_model_card(takes_scale: bool, count: int, tmp_path: Path) -> None:
    stated = load(write_flux_checkpoint(tmp_path / "stated", takes_scale=takes_scale))
    usual = load(write_flux_checkpoint(tmp_path / "usual", takes_scale=takes_scale, max_sequence_length=None))

    with torch.inference_mode():
        found = [model.encode_prompt("a").conditioning.states.shape[1] for model in (stated, usual)]
    assert found == [T5_TOKENS, count]


def test_clip_skip_and_syntax_are_refused_by_name(flux_model: DiffusionModel) -> None:
    with pytest.raises(InvalidArgument, match="prompt_syntax: must be unset with the family flux"):
        flux_model.chunk_count(parse_prompt("(a:1.2)", PromptSyntax.A1111))
    with pytest.raises(InvalidArgument, match="clip_skip: must be 0"):
        flux_model.encode_prompt("a", clip_skip=1)


def test_families_trained_in_bfloat16_have_it_on_a_gpu() -> None:
    halves = {family.name: getattr(torch, family.half) for family in FAMILIES}
    cuda, cpu = torch.device("cuda"), torch.device("cpu")

    assert {name for name, half in halves.items() if half is torch.bfloat16} == {
        "flux",
        "flux_2",
        "qwen_image",
        "sana",
        "z_image",
    }
    assert choose_dtype(DtypeChoice.AUTO, cuda, halves["flux"]) is torch.bfloat16
    assert choose_dtype(DtypeChoice.AUTO, cpu, halves["flux"]) is torch.float32


def test_larger_image_takes_more_steps_near_noise(flux_model: DiffusionModel) -> None:
    small, large = (schedule_for(flux_model, replace(FLOW, width_px=side)).timesteps for side in (SIDE_PX, 4096))

    assert (large[1:] > small[1:]).all()
    assert flux_model.image_tokens(4096, SIDE_PX) == 512 * 4
