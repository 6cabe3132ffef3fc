"""Test a cascade's served values by a router against hand-made ones."""

import numpy as np
import pytest

from benchmarks.cascade_quality import FeaturePairs, distance_values, scorer_values, served_moments
from benchmarks.frechet import FrechetReference, moments
from benchmarks.router import RoutedPrompts, gain_figures, margin_figures, served_apart
from benchmarks.routing_data import CLIP_SCORE, DIFFSERVE, PROMPT_AWARE, RANDOM, THING_COUNT, Reading
from benchmarks.routing_estimates import resampling_weights

SOURCE = np.random.default_rng(1)
COUNT = 40
LIGHT, HEAVY = SOURCE.normal(size=(COUNT, 3)), SOURCE.normal(size=(COUNT, 3)) + 1.0
READ = Reading(LIGHT[:, 0], HEAVY[:, 0])
CONFIDENCES = {
    PROMPT_AWARE: SOURCE.random(COUNT),
    f"{RANDOM} 0": SOURCE.random(COUNT),
    f"{RANDOM} 1": SOURCE.random(COUNT),
}


def served(confidence: np.ndarray, light: np.ndarray, heavy: np.ndarray, count: int) -> np.ndarray:
    found = light.copy()
    found[np.argsort(confidence)[:count]] = heavy[np.argsort(confidence)[:count]]
    return found


def test_least_confident_rows_are_deferred() -> None:
    reference = FrechetReference(HEAVY, 3)
    confidence = CONFIDENCES[PROMPT_AWARE]
    whole = served_moments(confidence, FeaturePairs(LIGHT, HEAVY, reference), 0.25, np.ones(COUNT))

    by_hand = moments(served(confidence, LIGHT, HEAVY, 10))

    assert whole.mean == pytest.approx(by_hand.mean)
    assert whole.covariance == pytest.approx(by_hand.covariance)


def test_random_router_is_mean_of_draws() -> None:
    draws = [CONFIDENCES[f"{RANDOM} {seed}"] for seed in range(2)]
    reference = FrechetReference(HEAVY, 3)
    values = scorer_values(CONFIDENCES, READ)(RANDOM, 0.5)
    distances = distance_values(CONFIDENCES, FeaturePairs(LIGHT, HEAVY, reference), 4)(RANDOM, 0.5)

    assert values[0] == pytest.approx(np.mean([served(each, READ.light, READ.heavy, 20).mean() for each in draws]))
    by_hand = [reference.distance(moments(served(each, LIGHT, HEAVY, 20))) for each in draws]
    assert distances[0] == pytest.approx(np.mean(by_hand))
    assert len(distances) == 5


def test_gain_samples_skip_equally_served_prompts() -> None:
    ours, theirs = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.1, 0.4, 0.3, 0.2])
    read = Reading(np.array([1.0, 2.0, 3.0, 4.0]), np.array([11.0, 12.0, 13.0, 14.0]))

    assert served_apart((ours, theirs), read, 0.5) == ["1:12:2", "3:4:14"]


def test_gain_is_difference_of_served_values() -> None:
    worse, better = np.arange(COUNT, dtype=float), READ.light - READ.heavy
    routed = RoutedPrompts({"r": READ}, {PROMPT_AWARE: better, DIFFSERVE: worse}, resampling_weights(COUNT, 50))

    found = next(figure for figure in gain_figures(routed) if "50% deferred" in figure.name)

    ours, theirs = (served(each, READ.light, READ.heavy, 20).mean() for each in (better, worse))
    assert found.value == pytest.approx(ours - theirs, abs=1e-5)
    assert found.ok


def test_margin_is_auroc_above_baseline() -> None:
    """Light is as good as heavy for the first of two prompts: one router knows, one is wrong, one cannot decide."""
    read = Reading(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    knows, wrong, even = np.array([0.9, 0.1]), np.array([0.1, 0.9]), np.array([0.5, 0.5])
    confidences = {PROMPT_AWARE: knows, THING_COUNT: even, CLIP_SCORE: wrong}

    found = margin_figures(RoutedPrompts({"r": read}, confidences, np.ones((3, 2))))

    assert {figure.name: figure.value for figure in found} == {
        "AUROC by r: prompt-aware discriminator - number of things asked for": 0.5,
        "AUROC by r: prompt-aware discriminator - CLIPScore of light": 1.0,
    }
