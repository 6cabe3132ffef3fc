"""SANA, SANA-Sprint and Qwen-Image in the step engine: batches of mixed captions, steps and starts; autoencoders."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderDC, AutoencoderKLQwenImage

from lab.fixtures.checkpoints import SIDE_PX
from lab.fixtures.sana_checkpoints import SANA_TOKENS, write_sana_checkpoint
from pentimento.diffusion.denoising import DenoisingRequest, ImageStart, LatentStart, NoiseStart
from pentimento.diffusion.families import DiffusionModel
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler
from tests.unit.diffusion.engine.loops import Loop
from tests.unit.diffusion.specs import denoise, load, spec_with

LONG = "a red circle above a blue square and three stars"


@pytest.fixture(scope="module")
def sana(sana_checkpoint: Path) -> DiffusionModel:
    return load(sana_checkpoint)


@pytest.fixture(scope="module")
def sprint(tmp_path_factory: pytest.TempPathFactory) -> DiffusionModel:
    return load(write_sana_checkpoint(tmp_path_factory.mktemp("sprint") / "model", is_sprint=True))


@pytest.fixture(scope="module")
def qwen(qwen_image_checkpoint: Path) -> DiffusionModel:
    return load(qwen_image_checkpoint)


def latent_of(seed: int) -> torch.Tensor:
    return torch.randn(1, 4, SIDE_PX // 4, SIDE_PX // 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("name", "scheduler"),
    [("sana", Scheduler.FLOW_DPM_SOLVER_PP_2M), ("sprint", Scheduler.SCM), ("qwen", Scheduler.FLOW_MATCH_EULER)],
)
def test_batch_of_mixed_requests_gives_images_alone(
    name: str, scheduler: Scheduler, request: pytest.FixtureRequest
) -> None:
    model: DiffusionModel = request.getfixturevalue(name)
    spec = spec_with(scheduler=scheduler)
    pixels = torch.rand(1, 3, SIDE_PX, SIDE_PX, generator=torch.Generator().manual_seed(3)) * 2 - 1
    mask = torch.zeros(1, 1, SIDE_PX, SIDE_PX)
    mask[..., : SIDE_PX // 2] = 1.0
    requests = [
        DenoisingRequest(replace(spec, prompt="a", negative_prompt=""), NoiseStart(), preview_interval_steps=2),
        DenoisingRequest(replace(spec, prompt=LONG, seed=8, num_inference_steps=5, guidance_scale=7.0), NoiseStart()),
        DenoisingRequest(replace(spec, prompt=LONG[:20]), LatentStart(latent_of(1), 3)),
        DenoisingRequest(spec, ImageStart(pixels, 2, mask)),
        DenoisingRequest(spec, NoiseStart(), thinned_steps=(2, 4, 7)),
    ]
    loop = Loop(model, max_batch=8)

    added = [loop.add(one) for one in requests]
    loop.run()

    assert max(loop.observer.sizes) == len(requests)
    for one, asked in zip(added, requests, strict=True):
        torch.testing.assert_close(one.heard.latent, denoise(model, asked), rtol=0, atol=1e-5)
    assert added[0].heard.previews == [2, 4, 6]
    known = model.encode_image(pixels, torch.Generator().manual_seed(spec.seed))[..., SIDE_PX // 8 :]
    torch.testing.assert_close(added[3].heard.latent[..., SIDE_PX // 8 :], known, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_decoded_latents_equal_diffusers(
    sana: DiffusionModel, sana_checkpoint: Path, qwen: DiffusionModel, qwen_image_checkpoint: Path
) -> None:
    deep = AutoencoderDC.from_pretrained(sana_checkpoint / "vae")
    films = AutoencoderKLQwenImage.from_pretrained(qwen_image_checkpoint / "vae")
    mean, deviation = (torch.tensor(films.config[name]).view(1, -1, 1, 1) for name in ("latents_mean", "latents_std"))

    expected = deep.decode(latent_of(2) / deep.config.scaling_factor).sample
    film = films.decode((latent_of(2) * deviation + mean).unsqueeze(2)).sample

    torch.testing.assert_close(sana.decode_latent(latent_of(2)), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(qwen.decode_latent(latent_of(2)), film[:, :, 0], rtol=0, atol=1e-5)


def test_prompt_is_cut_at_the_token_limit_and_says_so(sana: DiffusionModel) -> None:
    with torch.inference_mode():
        found = [sana.encode_prompt(prompt, negative=negative) for prompt in ("a", LONG) for negative in (False, True)]

    counts = [states.conditioning.token_counts for states in found]
    assert [None if count is None else count.item() for count in counts] == [3, 2, SANA_TOKENS, SANA_TOKENS]
    assert [states.truncated for states in found] == [False, False, True, True]


def test_only_sprint_is_guided_by_one_row(sana: DiffusionModel, sprint: DiffusionModel) -> None:
    assert [model.info.is_guided(4.5) for model in (sana, sprint)] == [True, False]
    with pytest.raises(InvalidArgument, match="clip_skip: must be 0"):
        sana.encode_prompt("a", clip_skip=1)
