"""Test that images in batches equal the engine's single ones."""

import pytest
import torch

from benchmarks.zoo_curves.batch_sampler import BatchSampler
from lab.fixtures.checkpoints import SIDE_PX, write_checkpoint
from pentimento.diffusion.painting import (
    ImageStart,
    LatentStart,
    NoiseStart,
    Painting,
    PaintingRequest,
    PaintingStart,
    denoise_step,
    prepare,
)
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.generation import GenerationSpec, Scheduler

STEPS, SCALE = 4, 2.5
PROMPTS, SEEDS = ("a red circle", "two stars"), (3, 8)


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> BatchSampler:
    return BatchSampler(write_checkpoint(tmp_path_factory.mktemp("checkpoint")), STEPS, SCALE)


@torch.inference_mode()
def painted_alone(sampler: BatchSampler, number: int, start: PaintingStart, until: int = STEPS) -> Painting:
    spec = GenerationSpec(
        PROMPTS[number], "", "tiny", SIDE_PX, SIDE_PX, STEPS, SCALE, Scheduler.DDIM, seed=SEEDS[number]
    )
    painting = prepare(sampler.model, PromptMemo(sampler.model, 8), PaintingRequest(spec, start))
    while painting.state.step_index < until:
        denoise_step(sampler.model, painting)
    return painting


def test_batch_sampler_from_noise_equals_engine(sampler: BatchSampler) -> None:
    final, held = sampler.denoise(sampler.noise(SEEDS), PROMPTS, kept=(2,))

    for number in range(len(PROMPTS)):
        halfway = painted_alone(sampler, number, NoiseStart(), until=2).state.latent
        whole = painted_alone(sampler, number, NoiseStart()).state.latent
        torch.testing.assert_close(held[2][number : number + 1], halfway, atol=1e-4, rtol=0.0)
        torch.testing.assert_close(final[number : number + 1], whole, atol=1e-4, rtol=0.0)


def test_batch_sampler_from_latent_equals_engine(sampler: BatchSampler) -> None:
    _, held = sampler.denoise(sampler.noise(SEEDS), PROMPTS[::-1], last_step=2, kept=(2,))

    final, _ = sampler.denoise(held[2], PROMPTS, first_step=2)

    alone = painted_alone(sampler, 0, LatentStart(held[2][:1], 2)).state.latent
    torch.testing.assert_close(final[:1], alone, atol=1e-4, rtol=0.0)


def test_batch_sampler_from_image_equals_engine(sampler: BatchSampler) -> None:
    images = torch.randint(256, (2, 3, SIDE_PX, SIDE_PX), generator=torch.Generator().manual_seed(0)).to(torch.uint8)

    final, _ = sampler.denoise(sampler.renoised(images, SEEDS, 1), PROMPTS, first_step=1)

    alone = painted_alone(sampler, 1, ImageStart(images[1:].float() / 127.5 - 1.0, 1)).state.latent
    torch.testing.assert_close(final[1:], alone, atol=1e-4, rtol=0.0)
    assert sampler.decode(final).shape == (2, 3, SIDE_PX, SIDE_PX)
