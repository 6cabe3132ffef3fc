"""Z-Image in the step engine: captions of different lengths share a pass, guidance scales count from 0."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lab.fixtures.checkpoints import SIDE_PX
from lab.fixtures.flow_checkpoints import Z_IMAGE_TOKENS
from pentimento.diffusion.denoising import DenoisingRequest, ImageStart, LatentStart, NoiseStart
from pentimento.diffusion.families import DiffusionModel
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler
from pentimento.domain.prompt_syntax import PromptSyntax, parse_prompt
from tests.unit.diffusion.engine.loops import Loop
from tests.unit.diffusion.specs import denoise, load, spec_with

FLOW = spec_with(scheduler=Scheduler.FLOW_MATCH_EULER)
LONG = "a red circle above a blue square and three stars"


@pytest.fixture(scope="module")
def z_model(z_image_checkpoint: Path) -> DiffusionModel:
    return load(z_image_checkpoint)


def test_batch_of_captions_of_any_length_gives_images_alone(z_model: DiffusionModel) -> None:
    pixels = torch.rand(1, 3, SIDE_PX, SIDE_PX, generator=torch.Generator().manual_seed(3)) * 2 - 1
    latent = torch.randn(1, 4, SIDE_PX // 4, SIDE_PX // 4, generator=torch.Generator().manual_seed(1))
    requests = [
        DenoisingRequest(replace(FLOW, prompt="a", negative_prompt=""), NoiseStart(), preview_interval_steps=4),
        DenoisingRequest(replace(FLOW, prompt=LONG, seed=8, num_inference_steps=5, guidance_scale=0.5), NoiseStart()),
        DenoisingRequest(replace(FLOW, prompt=LONG[:40], guidance_scale=1.0), LatentStart(latent, 3)),
        DenoisingRequest(replace(FLOW, prompt=2 * LONG), ImageStart(pixels, 2), thinned_steps=(3, 5, 7)),
    ]
    loop = Loop(z_model)

    added = [loop.add(request) for request in requests]
    loop.run()

    assert max(loop.observer.sizes) == len(requests)
    for one, request in zip(added, requests, strict=True):
        torch.testing.assert_close(one.heard.latent, denoise(z_model, request), rtol=0, atol=1e-5)


def test_prompt_is_cut_at_the_token_limit_and_says_so(z_model: DiffusionModel) -> None:
    with torch.inference_mode():
        short, long = (z_model.encode_prompt(prompt) for prompt in ("a", 2 * LONG))

    counts = [found.conditioning.token_counts for found in (short, long)]
    assert [None if count is None else count.tolist() for count in counts] == [[20], [Z_IMAGE_TOKENS]]
    assert [found.truncated for found in (short, long)] == [False, True]
    assert short.conditioning.states.shape == long.conditioning.states.shape


def test_guidance_starts_above_zero(z_model: DiffusionModel) -> None:
    assert [z_model.info.is_guided(scale) for scale in (0.0, 0.5, 5.0)] == [False, True, True]


def test_clip_skip_and_syntax_are_refused_by_name(z_model: DiffusionModel) -> None:
    with pytest.raises(InvalidArgument, match="prompt_syntax: must be unset with the family z_image"):
        z_model.chunk_count(parse_prompt("(a:1.2)", PromptSyntax.A1111))
    with pytest.raises(InvalidArgument, match="clip_skip: must be 0"):
        z_model.encode_prompt("a", clip_skip=1)
