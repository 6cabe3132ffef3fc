"""Test the figures of routers: AUROC, deferral by rate, and their intervals."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import routing_networks
from benchmarks.cascade_quality import FeaturePairs, distance_values, mean_gains, scorer_values, served_moments
from benchmarks.image_distances import FrechetReference, moments
from benchmarks.reuse_quality import (
    Array,
)
from benchmarks.router import RoutedPrompts, gain_figures, margin_figures
from benchmarks.routing_data import BY_PROMPT, CLIP_SCORE, DIFFSERVE, PROMPT_AWARE, RANDOM, THING_COUNT, Reading
from benchmarks.routing_estimates import deferred_weights, figure_of, served_values
from benchmarks.routing_networks import (
    PREFERENCE,
    ROUTERS,
    PreferencePart,
    Preferences,
    SceneImages,
    ShownImages,
    trained_margins,
)
from pentimento.diffusion.discriminators.calibration import aurocs, resampling_weights
from zoo.train.loop import TrainingPlan

SOURCE = np.random.default_rng(0)
COUNT = 40
LIGHT, HEAVY = SOURCE.normal(size=(COUNT, 3)), SOURCE.normal(size=(COUNT, 3)) + 1.0
READ = Reading(LIGHT[:, 0], HEAVY[:, 0])
DRAWS = {f"{RANDOM} {seed}": SOURCE.random(COUNT) for seed in range(2)}
CONFIDENCE = np.array([0.1, 0.9, 0.5, 0.5, 0.3, 0.9])
GOOD = np.array([False, True, True, False, False, False])


def served(confidence: Array, light: Array, heavy: Array, count: int) -> Array:
    found = light.copy()
    found[np.argsort(confidence)[:count]] = heavy[np.argsort(confidence)[:count]]
    return found


def pairs_won(confidence: Array, good: Array, counts: Array) -> float:
    rows = np.repeat(np.arange(len(good)), counts.astype(int))
    wins = [
        0.5 * (confidence[one] == confidence[other]) + (confidence[one] > confidence[other])
        for one in rows[good[rows]]
        for other in rows[~good[rows]]
    ]
    return float(np.mean(wins))


def test_aurocs_equal_pair_shares_by_resample() -> None:
    weights = np.array([[1, 1, 1, 1, 1, 1], [2, 0, 1, 1, 0, 2], [0, 3, 0, 1, 2, 0]], dtype=float)

    found = aurocs(CONFIDENCE, GOOD, weights)

    assert found.tolist() == pytest.approx([pairs_won(CONFIDENCE, GOOD, row) for row in weights])


def test_served_values_defer_least_confident_share() -> None:
    light, heavy = np.arange(6.0), np.arange(6.0) + 10.0
    weights = np.array([[1, 1, 1, 1, 1, 1], [0, 2, 0, 0, 2, 2]], dtype=float)

    found = served_values(CONFIDENCE, light, heavy, 0.5, weights)

    # Rows 0, 4 and 2 have the least confidence; the resample has both draws of row 4, and one of row 1.
    assert found.tolist() == pytest.approx([(10 + 1 + 12 + 3 + 14 + 5) / 6, (14 * 2 + 11 + 1 + 5 * 2) / 6])


@pytest.mark.parametrize(("rate", "deferred"), [(0.0, [0, 0, 0]), (0.5, [1, 1, 0]), (1.0, [1, 2, 1])])
def test_deferral_rate_counts_draws(rate: float, deferred: list[float]) -> None:
    assert deferred_weights(np.array([[1.0, 2.0, 1.0]]), rate).tolist() == [deferred]


def test_resampling_weights_start_with_each_prompt_once() -> None:
    weights = resampling_weights(50, 20)

    assert (weights.shape, weights[0].tolist(), set(weights.sum(axis=1))) == ((21, 50), [1.0] * 50, {50.0})
    assert (resampling_weights(50, 20) == weights).all()


def test_figure_uses_all_prompts_and_interval_resamples() -> None:
    value, interval = figure_of(np.array([7.0, *np.linspace(0.0, 1.0, 1001)]))

    assert (value, interval.low, interval.high) == pytest.approx((7.0, 0.025, 0.975))


def test_least_confident_rows_are_deferred() -> None:
    confidence = SOURCE.random(COUNT)
    features = FeaturePairs(LIGHT, HEAVY, FrechetReference(HEAVY, 3))

    whole = served_moments(confidence, features, 0.25, np.ones(COUNT))

    by_hand = moments(served(confidence, LIGHT, HEAVY, 10))
    assert whole.mean == pytest.approx(by_hand.mean)
    assert whole.covariance == pytest.approx(by_hand.covariance)


def test_random_router_is_mean_of_draws() -> None:
    reference = FrechetReference(HEAVY, 3)
    values = scorer_values(DRAWS, READ)(RANDOM, 0.5)
    distances = distance_values(DRAWS, FeaturePairs(LIGHT, HEAVY, reference), 4)(RANDOM, 0.5)

    of_draws = [served(each, READ.light, READ.heavy, 20).mean() for each in DRAWS.values()]
    assert values[0] == pytest.approx(np.mean(of_draws))
    by_hand = [reference.distance(moments(served(each, LIGHT, HEAVY, 20))) for each in DRAWS.values()]
    assert (distances[0], len(distances)) == (pytest.approx(np.mean(by_hand)), 5)


def test_mean_gain_averages_rates_by_resample() -> None:
    """Take a name's length and the rate as a router's value, times the resample's number."""

    def value(router: str, rate: float) -> Array:
        return (len(router) + rate) * np.array([1.0, 2.0, 3.0])

    found = {figure.name: figure for figure in mean_gains("value", ROUTERS, value, -1.0)}

    ours = found[f"value, mean over rates: {PROMPT_AWARE} better than {RANDOM}"]
    assert ours.value == len(RANDOM) - len(PROMPT_AWARE)
    assert {f"value, mean over rates: {router} better than {RANDOM}" for router in ROUTERS} < found.keys()


BLACK = torch.zeros(16, 3, 64, 64, dtype=torch.uint8)
UNIT_ROWS = torch.eye(128)[:16]


@pytest.mark.training
def test_trained_routers_separate_light_from_real(tmp_path: Path) -> None:
    """Train on black and white images: light's are white, all others black and preferred."""
    scenes = SceneImages(drawn=BLACK, rendered=BLACK, light=BLACK + 255, heavy=BLACK)
    preferences = Preferences(torch.zeros(16), UNIT_ROWS)
    shown = ShownImages(torch.cat([BLACK[:1], BLACK[:1] + 255]), UNIT_ROWS[:1].repeat(2, 1))
    plan = TrainingPlan(steps=6, peak_rate=2e-3, warmup=1)

    found = dict(trained_margins(ROUTERS, scenes, preferences, shown, tmp_path, plan))

    assert list(found) == ROUTERS
    assert all(np.isfinite(margins).all() for margins in found.values())
    assert all(found[name][0] > found[name][1] for name in ROUTERS if "heavy" in name or name == PREFERENCE)


@pytest.mark.training
def test_router_trained_before_is_scored_without_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = SceneImages(BLACK, BLACK, BLACK + 255, BLACK)
    shown = ShownImages(BLACK[:2], UNIT_ROWS[:2])
    plan = TrainingPlan(steps=6, peak_rate=2e-3, warmup=1)
    inputs = (["ViT, heavy as real"], scenes, None, shown, tmp_path, plan)
    first = dict(trained_margins(*inputs))
    announced = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ViT")]

    monkeypatch.setattr(routing_networks.TrainingRun, "train", None)
    again = dict(trained_margins(*inputs))

    assert announced[0].startswith("ViT, heavy as real: 4 of 6 steps left, ")
    assert capsys.readouterr().out == "ViT, heavy as real: trained and scored\n"
    assert again["ViT, heavy as real"].tolist() == first["ViT, heavy as real"].tolist()


@pytest.mark.parametrize(("preferred", "loss"), [([1.0], 0.126928), ([0.0], 2.126928), ([0.5], 1.126928)])
def test_preference_loss_is_cross_entropy_of_a_pairs_scores(preferred: list[float], loss: float) -> None:
    """Score by the mean pixel: the light image has 1, the heavy one -1. The softmax is 0.880797 and 0.119203."""

    class MeanPixel(torch.nn.Module):
        def forward(self, pixels: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
            return pixels.mean(dim=(1, 2, 3)).sign() * captions[:, 0]

    scenes = SceneImages(BLACK[:1], BLACK[:1], BLACK[:1] + 255, BLACK[:1])
    part = PreferencePart(MeanPixel(), scenes, Preferences(torch.tensor(preferred), torch.ones(1, 1)), 4)

    found, _ = part.loss(torch.Generator().manual_seed(0))

    assert float(found) == pytest.approx(loss, abs=1e-5)


def test_gain_is_difference_of_served_values() -> None:
    worse, better = np.arange(COUNT, dtype=float), READ.light - READ.heavy
    routed = RoutedPrompts({"r": READ}, {PROMPT_AWARE: better, DIFFSERVE: worse}, resampling_weights(COUNT, 50))

    found = next(figure for figure in gain_figures(routed) if "50% deferred" in figure.name)

    ours, theirs = (served(each, READ.light, READ.heavy, 20).mean() for each in (better, worse))
    assert (found.value, found.ok) == (pytest.approx(ours - theirs, abs=1e-5), True)


def test_margin_is_auroc_above_baseline() -> None:
    """Light is as good as heavy for the first of two prompts: one router knows, one is wrong, one cannot decide."""
    read = Reading(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    knows, wrong, even = np.array([0.9, 0.1]), np.array([0.1, 0.9]), np.array([0.5, 0.5])
    confidences = {PROMPT_AWARE: knows, BY_PROMPT: even, CLIP_SCORE: wrong, THING_COUNT: even}

    found = margin_figures(RoutedPrompts({"r": read}, confidences, np.ones((3, 2))))

    assert [figure.value for figure in found] == [0.5, 1.0, 0.5]
