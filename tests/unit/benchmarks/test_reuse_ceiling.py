"""Test a log's possible savings, on hand-made logs."""

import numpy as np
import pytest

from benchmarks.reuse_ceiling import (
    FROM_NOISE,
    MOST_ANCESTORS,
    GenerationCosts,
    LogStart,
    ReuseTables,
    Vectors,
    log_starts,
    throughput_ceiling,
)
from pentimento.policies.cache_selection import Threshold

COSTS = GenerationCosts(heavy_steps=50, light_steps=10, heavy_step_s=0.02, light_step_s=0.01)
LATENTS = ReuseTables(latents=(Threshold(0.9, 0.5),))
IMAGES = ReuseTables(images=(Threshold(0.3, 0.4),))
BOTH = ReuseTables(LATENTS.latents, IMAGES.images)


def unit(*angles: float) -> Vectors:
    """Unit vectors of two dimensions, at these angles in degrees."""
    radians = np.radians(angles)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def test_log_starts_latent_hits_leave_no_latents() -> None:
    texts = unit(0, 20, 40, 60)

    # 20 degrees are near enough (0.94), 40 are not (0.77): the third is no hit, since the second stored nothing.
    assert log_starts(texts, texts, LATENTS, COSTS) == [
        FROM_NOISE,
        LogStart(False, 25, 0),
        FROM_NOISE,
        LogStart(False, 25, 2),
    ]


def test_log_starts_images_use_image_vectors() -> None:
    texts, images = unit(0, 10, 100), unit(180, 60, 90)

    # The first image is far from every text; the second is at 50 degrees (0.64) from the third text, not from its own,
    # which comes too early.
    assert log_starts(texts, images, IMAGES, COSTS) == [FROM_NOISE, FROM_NOISE, LogStart(True, 4, 1)]


def test_log_starts_choose_cheaper_start() -> None:
    texts = unit(0, 5)
    dear = GenerationCosts(50, 10, 0.02, light_step_s=0.2)

    cheap, costly = (log_starts(texts, texts, BOTH, costs)[1] for costs in (COSTS, dear))

    assert (cheap, costly) == (LogStart(True, 4, 0), LogStart(False, 25, 0))


def test_log_starts_skip_images_in_flight() -> None:
    texts = unit(0, 5, 50)

    assert log_starts(texts[:2], texts[:2], LATENTS, COSTS, unseen=1)[1] == FROM_NOISE
    assert log_starts(unit(0, 50, 5), texts, LATENTS, COSTS, unseen=1)[2] == LogStart(False, 25, 0)


def test_log_starts_skip_images_with_many_ancestors() -> None:
    """Each text is only near the image before it."""
    texts = unit(*(10.0 * number for number in range(12)))
    tables = ReuseTables(images=(Threshold(0.98, 0.4),))

    donors = [start.donor for start in log_starts(texts, texts, tables, COSTS)]

    assert MOST_ANCESTORS == 5
    assert donors == [-1, 0, 1, 2, 3, 4, -1, 6, 7, 8, 9, 10]


def test_throughput_ceiling_is_cost_ratio() -> None:
    starts = [FROM_NOISE, LogStart(False, 25, 0), LogStart(True, 4, 0)]

    # 1 s from noise, half of it from the latent, six steps of 0.01 s for the image.
    assert throughput_ceiling(starts, COSTS) == pytest.approx(3.0 / (1.0 + 0.5 + 0.06))
