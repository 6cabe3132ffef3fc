"""What the distance of patches sees: softness and noise at the level where they are, and nothing in equal pictures."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from zoo.drawing.prompts import examination_prompts
from zoo.evaluate.detail import LEVELS_PX, fine_detail, patch_distance

COUNT = 4


@pytest.fixture(scope="module")
def drawn() -> Tensor:
    return examination_prompts(COUNT).drawn[:, None]


def softer(pictures: Tensor, radius_px: int) -> Tensor:
    wide = functional.pad(pictures[:, 0].float(), (radius_px,) * 4, mode="replicate")
    return functional.avg_pool2d(wide, 2 * radius_px + 1, 1).to(torch.uint8)[:, None]


@pytest.mark.parametrize("level_px", LEVELS_PX)
def test_equal_pictures_are_at_no_distance(drawn: Tensor, level_px: int) -> None:
    assert patch_distance(drawn, drawn, level_px).tolist() == [[0.0]] * COUNT


def test_softer_pictures_are_further(drawn: Tensor) -> None:
    little, much = (fine_detail(softer(drawn, radius), drawn) for radius in (1, 2))

    assert (little > 0).all()
    assert (little < much).all()


def test_mirrored_pictures_have_the_same_kind_of_detail(drawn: Tensor) -> None:
    mirrored = fine_detail(drawn.flip(-1), drawn)

    assert (mirrored < fine_detail(softer(drawn, 1), drawn)).all()


def test_noise_is_seen_at_the_finest_level_most(drawn: Tensor) -> None:
    noise = torch.randint(-20, 21, drawn.shape, generator=torch.Generator().manual_seed(0))
    noisy = (drawn + noise).clamp(0, 255).to(torch.uint8)

    finest, *_, coarsest = (patch_distance(noisy, drawn, level).mean() for level in LEVELS_PX)

    assert finest > 2 * coarsest


def test_one_reference_serves_all_seeds(drawn: Tensor) -> None:
    seeds = torch.cat([drawn, softer(drawn, 1)], dim=1)

    found = patch_distance(seeds, drawn, LEVELS_PX[0])

    assert found.shape == (COUNT, 2)
    np.testing.assert_array_equal(found[:, :1], patch_distance(drawn, drawn, LEVELS_PX[0]))
