"""Test pairs of captions, the order of resumed images, and images in batches."""

import numpy as np
import pytest
import torch

from benchmarks.zoo_curves import resuming
from benchmarks.zoo_curves.batch_sampler import BatchSampler
from benchmarks.zoo_curves.caption_pairs import KINDS, caption_pairs, changed
from benchmarks.zoo_curves.resuming import FIFTHS, breaks
from lab.fixtures.checkpoints import SIDE_PX, write_checkpoint
from pentimento.diffusion.denoising import (
    DenoisingRequest,
    DenoisingStart,
    ImageStart,
    LatentStart,
    NoiseStart,
    denoise_step,
    prepare,
)
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.generation import GenerationSpec, Scheduler
from zoo.drawing.captions import attributes
from zoo.drawing.scenes import UNREADABLE, scene_at

STEPS, SCALE = 4, 2.5
PROMPTS, SEEDS = ("a red circle", "two stars"), (3, 8)


@pytest.mark.parametrize("count", [1, 3])
def test_changed_scene_has_requested_changes(count: int) -> None:
    for index in range(20):
        scene, rng = scene_at(2, index, held_out=True)
        found = changed(scene, frozenset(attributes(scene)), count, rng)

        before, after = attributes(scene), attributes(found)
        assert sum(before[name] != after[name] for name in before) == count
        assert all((thing.colour, found.background) not in UNREADABLE for thing in found.things)


def test_caption_pairs_have_each_kind_and_shared_seed() -> None:
    pairs = caption_pairs(5)

    captions, donors, seeds = pairs.flat()

    assert captions == [caption for caption in pairs.captions for _ in KINDS]
    assert seeds == [seed for seed in range(5) for _ in KINDS]
    assert len(donors) == len(seeds) and pairs.donors == caption_pairs(5).donors


@pytest.mark.parametrize(
    ("five", "ten", "expected"),
    [
        pytest.param([0.7] * 5, [0.4, 0.5, 0.6, 0.7, 0.7], [], id="within noise"),
        pytest.param(
            [0.5] * 5,
            [0.4, 0.5, 0.7, 0.5, 0.5],
            ["at 10: fifth 2 to 3", "fifth 2: 5 to 10"],
            id="falls with similarity and rises with the step",
        ),
    ],
)
def test_breaks_finds_order_beyond_noise(
    monkeypatch: pytest.MonkeyPatch, five: list[float], ten: list[float], expected: list[str]
) -> None:
    monkeypatch.setattr(resuming, "RESAMPLES", 500)
    fifths = np.tile(np.arange(FIFTHS), (60, 1))
    noise = [np.random.default_rng(seed).normal(0.0, 0.05, (60, FIFTHS)) for seed in (1, 2)]

    assert breaks({5: noise[0] + five, 10: noise[1] + ten}, fifths, range(FIFTHS)) == expected


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> BatchSampler:
    return BatchSampler(write_checkpoint(tmp_path_factory.mktemp("checkpoint")), STEPS, SCALE)


@torch.inference_mode()
def generated_alone(sampler: BatchSampler, number: int, start: DenoisingStart, until: int = STEPS) -> torch.Tensor:
    size = (SIDE_PX, SIDE_PX)
    spec = GenerationSpec(PROMPTS[number], "", "tiny", *size, STEPS, SCALE, Scheduler.DDIM, seed=SEEDS[number])
    run = prepare(sampler.model, PromptMemo(sampler.model, 8), DenoisingRequest(spec, start))
    while run.state.step_index < until:
        denoise_step(sampler.model, run)
    return run.state.latent


def test_batch_sampler_equals_engine_from_every_start(sampler: BatchSampler) -> None:
    final, held = sampler.denoise(sampler.noise(SEEDS), PROMPTS, kept=(2,))
    resumed, _ = sampler.denoise(held[2].flip(0), PROMPTS, first_step=2)
    images = torch.randint(256, (2, 3, SIDE_PX, SIDE_PX), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    refined, _ = sampler.denoise(sampler.renoised(images, SEEDS, 1), PROMPTS, first_step=1)

    for number in range(len(PROMPTS)):
        row = slice(number, number + 1)
        donor = LatentStart(held[2].flip(0)[row], 2)
        image = ImageStart(images[row].float() / 127.5 - 1.0, 1)
        for found, alone in (
            (held[2][row], generated_alone(sampler, number, NoiseStart(), until=2)),
            (final[row], generated_alone(sampler, number, NoiseStart())),
            (resumed[row], generated_alone(sampler, number, donor)),
            (refined[row], generated_alone(sampler, number, image)),
        ):
            torch.testing.assert_close(found, alone, atol=1e-4, rtol=0.0)
    assert sampler.decode(final).shape == (2, 3, SIDE_PX, SIDE_PX)
