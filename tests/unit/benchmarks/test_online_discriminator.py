"""Test the choice of shadow requests, and the targets of the figures."""

import numpy as np
import pytest
import torch

from benchmarks.embedder_rate import IMAGE, served_ms
from benchmarks.online_discriminator import OFFLINE, SHADOWS, Requests, count_figures, shadowed
from services.discriminator.training.pairs import PairTensors

COUNT = 400


def test_shadows_are_deferred_images_and_few_others_with_weights() -> None:
    confidences = torch.linspace(0.0, 1.0, COUNT, dtype=torch.float64)
    nothing = torch.zeros(COUNT)
    requests = Requests(nothing, nothing, nothing, nothing, nothing, confidences)

    rows, weights = shadowed(requests, np.arange(COUNT), 0.08)

    assert set(range(COUNT // 2)) < set(rows.tolist())
    accepted = rows >= COUNT // 2
    assert 5 < accepted.sum() < 30
    assert set(weights[~accepted]) == {1.0}
    assert set(weights[accepted]) == {1 / 0.08}
    # The weights undo the choice: both halves count about the same.
    assert weights[accepted].sum() == pytest.approx(COUNT / 2, rel=0.4)


@pytest.mark.parametrize(("noise", "ok"), [(0.0, True), (3.0, False)])
def test_ratio_of_aurocs_has_its_target(noise: float, ok: bool) -> None:
    random = np.random.default_rng(0)
    light = torch.from_numpy(random.normal(size=COUNT))
    nothing = torch.zeros(COUNT)
    test = PairTensors(nothing, nothing, nothing, light, nothing.double(), nothing, nothing, nothing)
    sure = light.numpy()
    blurred = sure + noise * random.normal(size=COUNT)

    figures = list(count_figures(2000, {SHADOWS: (blurred, blurred), OFFLINE: (sure, sure)}, test))

    assert figures[0].name == "AUROC after 2000 shadows ÷ with as many labels made offline"
    assert (figures[0].target.limit, figures[0].ok) == (0.95, ok)
    assert {figure.name for figure in figures if figure.target.limit is not None} == {figures[0].name}


def test_device_of_embedder_rate_is_in_results() -> None:
    assert 50.0 < served_ms() < 500.0
    assert "30 steps" in IMAGE
