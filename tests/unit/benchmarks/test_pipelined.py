"""Test the figures of pipelined ControlNets with known numbers."""

import numpy as np
import pytest
import torch

from benchmarks.pipelined_link import CASES, H800, LinkCase, ideal_s
from benchmarks.pipelined_quality import compared
from benchmarks.structural_similarity import structural_similarity
from lab.emulation.pace import read_pace
from zoo.evaluate.estimates import Array


def verdicts(synchronous: Array, pipelined: Array, other: Array) -> dict[str, tuple[float | None, bool]]:
    rows = compared("edges: judge", synchronous, pipelined, other)
    return {row.name.partition(", ")[2]: (row.value, row.ok) for row in rows}


def test_loss_on_every_prompt_fails_both_readings() -> None:
    synchronous = np.linspace(0.5, 0.9, 40)[:, None]

    found = verdicts(synchronous, synchronous - 0.2, synchronous + 0.01)

    assert found["loss beyond the paired bootstrap"] == (pytest.approx(0.2), False)
    assert found["loss beyond what seeds differ by"] == (pytest.approx(0.19), False)


def test_loss_within_seed_difference_passes_seed_reading() -> None:
    synchronous = np.linspace(0.5, 0.9, 40)[:, None]

    found = verdicts(synchronous, synchronous - 0.02, synchronous - 0.03)

    assert not found["loss beyond the paired bootstrap"][1]
    assert found["loss beyond what seeds differ by"] == (0.0, True)


def test_difference_in_both_directions_is_no_loss() -> None:
    rng = np.random.default_rng(0)
    synchronous = rng.random((40, 1))

    found = verdicts(synchronous, synchronous + rng.normal(0.0, 0.1, (40, 1)), rng.random((40, 1)))

    assert all(ok for _, ok in found.values())


def test_ssim_of_same_image_is_one_and_falls_with_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 32, 32, generator=generator)
    noise = torch.randn(2, 3, 32, 32, generator=generator)

    same = structural_similarity(images, images)
    little, much = (structural_similarity(images, (images + share * noise).clamp(0, 1)) for share in (0.05, 0.5))

    assert torch.allclose(same, torch.ones(2, dtype=torch.float64))
    assert (little < 1.0).all() and (much < little).all()


def test_ssim_of_flat_images_depends_on_means() -> None:
    dark, bright = torch.full((1, 3, 16, 16), 0.2), torch.full((1, 3, 16, 16), 0.6)

    # (2 * 0.2 * 0.6 + C1) / (0.2^2 + 0.6^2 + C1), with C1 = 0.0001; no variance, so that the rest is 1.
    assert float(structural_similarity(dark, bright)) == pytest.approx(0.2401 / 0.4001, abs=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_ideal_is_longer_first_half_plus_decoder(case: LinkCase) -> None:
    assert ideal_s(read_pace(H800), case, 50) == pytest.approx(50 * 0.0302 * case.slower * case.stretch)
