"""Test the arithmetic of quality figures: distances, gates, and savings by reuse in a log."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.image_distances import FrechetReference, Moments, moments, structural_similarity
from benchmarks.image_scorers import check_scorers
from benchmarks.pipelined_link import CASES as LINKS
from benchmarks.pipelined_link import H800, ideal_s
from benchmarks.pipelined_quality import compared
from benchmarks.reuse_ceiling import (
    FROM_NOISE,
    GenerationCosts,
    LogStart,
    ReuseTables,
    Vectors,
    donors_above,
    donors_at_share,
    hit_share,
    log_starts,
)
from benchmarks.reuse_quality import (
    IMAGES_GATE,
    LATENTS_GATE,
    ArmRounds,
    Array,
    Distances,
    FeatureSpace,
    ScoredImages,
    attribute_pairs,
    failing_control,
    frechet_distance,
    quality_figures,
    throughput_figures,
)
from benchmarks.value_runs import LogPlan
from lab.emulation.pace import read_pace
from lab.runs.measure import Figure, at_least, informative
from pentimento.domain.errors import NotFound
from pentimento.policies.cache_selection import Threshold
from zoo.drawing.captions import ATTRIBUTES
from zoo.evaluate.examination import COLUMNS

SOURCE = np.random.default_rng(0)
REAL = SOURCE.normal(size=(4_000, 5)) * [4.0, 3.0, 2.0, 1.0, 0.01]


def scored(score: float, right: bool, count: int = 8) -> ScoredImages:
    """Return images with every attribute requested, all right or all wrong."""
    shape = count, len(ATTRIBUTES)
    scores: Array = np.full(count, score)
    return ScoredImages(scores, scores, np.full(shape, right), np.full(shape, True), scores[:, None])


# Distances


def test_distance_to_itself_is_zero() -> None:
    reference = FrechetReference(REAL, 4)

    assert reference.distance(moments(reference.project(REAL))) == pytest.approx(0.0, abs=1e-9)
    assert frechet_distance(REAL, REAL) == pytest.approx(0.0, abs=1e-9)


def test_distance_of_shift_and_stretch_is_closed_form() -> None:
    reference = FrechetReference(REAL, 4)
    own = moments(reference.project(REAL))
    shifted = Moments(own.mean + np.array([0.0, 3.0, 0.0, 4.0]), own.covariance * 4.0)

    # twice as wide along each axis: the sum of the variances again
    assert reference.distance(shifted) == pytest.approx(25.0 + np.trace(own.covariance))


@pytest.mark.parametrize("turn", [np.eye(2), np.array([[0.6, -0.8], [0.8, 0.6]])], ids=["same axes", "turned"])
def test_distance_of_normals_is_closed_form(turn: Array) -> None:
    plain = np.random.default_rng(3).standard_normal((100_000, 2)) * [1.0, 3.0]

    found = frechet_distance(plain @ turn.T + 1.0, plain)

    own, other = turn @ np.diag([1.0, 9.0]) @ turn.T, np.diag([1.0, 9.0])
    mixed = np.sqrt(np.linalg.eigvals(own @ other).real).sum()
    assert found == pytest.approx(2.0 + 20.0 - 2.0 * mixed, rel=0.03)


def test_moments_weight_equals_copies() -> None:
    weights = SOURCE.integers(0, 4, size=len(REAL)).astype(float)
    copied, weighted = moments(np.repeat(REAL, weights.astype(int), axis=0)), moments(REAL, weights)

    assert weighted.mean == pytest.approx(copied.mean)
    assert weighted.covariance == pytest.approx(copied.covariance)


def test_feature_space_keeps_largest_variance() -> None:
    features = SOURCE.standard_normal((500, 4)) * [0.01, 5.0, 0.01, 2.0]
    space = FeatureSpace.of(features, count=2)

    assert np.abs(space.directions[[0, 2]]).max() < 0.05
    assert space.distance(features + np.array([3.0, 0.0, 0.0, 0.0]), features) < 0.1
    assert space.distance(features + np.array([0.0, 3.0, 0.0, 0.0]), features) > 0.1


def test_distance_excess_is_beyond_seeds() -> None:
    excess = [Distances(*of).of_light for of in ((3.0, 2.0, 6.0), (1.0, 2.0, 6.0), (1.0, 2.0, 2.0))]

    assert excess == pytest.approx([0.25, 0.0, None])
    assert Distances(ours=1.0, seeds=2.0, light=6.0).of_seeds == 0.5


def test_ssim_is_one_and_falls_with_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    images, noise = torch.rand(2, 3, 32, 32, generator=generator), torch.randn(2, 3, 32, 32, generator=generator)

    same, little, much = (
        structural_similarity(images, (images + share * noise).clamp(0, 1)) for share in (0.0, 0.05, 0.5)
    )

    assert torch.allclose(same, torch.ones(2, dtype=torch.float64))
    assert (little < 1.0).all() and (much < little).all()


def test_ssim_of_flat_images_depends_on_means() -> None:
    dark, bright = torch.full((1, 3, 16, 16), 0.2), torch.full((1, 3, 16, 16), 0.6)

    # (2 * 0.2 * 0.6 + C1) / (0.2^2 + 0.6^2 + C1), with C1 = 0.0001; no variance, so that the rest is 1.
    assert float(structural_similarity(dark, bright)) == pytest.approx(0.2401 / 0.4001, abs=1e-6)


# The gate of cache_value


def test_gate_passes_equal_images_and_fails_worse_ones() -> None:
    vanilla, near, far = scored(0.8, True), Distances(1.0, 2.0, 6.0), Distances(5.0, 2.0, 6.0)

    attributes = {f"arm: {name} right ÷ vanilla's" for name in COLUMNS}
    distance = {LATENTS_GATE: "distance ÷ that of vanilla's two seeds", IMAGES_GATE: "excess ÷ all-light's"}
    for gate in (LATENTS_GATE, IMAGES_GATE):
        assert all(figure.ok for figure in quality_figures("arm", scored(0.8, True), vanilla, near, gate))
        worse = quality_figures("arm", scored(0.7, False), vanilla, far, gate)
        failed = {figure.name for figure in worse if not figure.ok}
        assert failed == {"arm: CLIPScore ÷ vanilla's", f"arm: Fréchet {distance[gate]}", *attributes}


@pytest.mark.parametrize(
    ("gate", "failed"), [(LATENTS_GATE, []), (IMAGES_GATE, ["arm: CLIPScore ÷ vanilla's"])], ids=["latents", "images"]
)
def test_image_gate_has_higher_score_bound(gate: object, failed: list[str]) -> None:
    ours = quality_figures("arm", scored(0.97, True), scored(1.0, True), Distances(1.0, 2.0, 6.0), gate)  # type: ignore[arg-type]

    assert [figure.name for figure in ours if not figure.ok] == failed


def test_control_must_fail_a_figure() -> None:
    passed, failed = (Figure("score", value, at_least(0.98)) for value in (0.99, 0.5))

    assert (failing_control("light", [passed]).ok, failing_control("light", [passed, failed]).ok) == (False, True)


def test_attribute_pairs_count_requested_values() -> None:
    asked, nothing = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]], bool), np.zeros(3)
    ours, vanilla = (
        ScoredImages(nothing, nothing, np.array(right, bool), asked, nothing[:, None])
        for right in ([[1, 1, 0], [0, 0, 0], [0, 0, 0]], [[1, 0, 0], [1, 0, 0], [0, 0, 0]])
    )

    assert attribute_pairs(ours, vanilla, {"shape": [0, 1], "place": [2]}) == {"shape": [(2, 1), (0, 1)]}


def test_check_scorers_names_training_command(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=rf"pentimento zoo train judge --work {tmp_path}"):
        check_scorers(tmp_path, tmp_path)
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "checkpoint.safetensors").touch()
    with pytest.raises(NotFound, match=r"zoo train dual-encoder --seed 5"):
        check_scorers(tmp_path, tmp_path)


# Two rounds of two requests: vanilla takes 1 s an image and then 2 s, all-light a tenth.
ROUNDS = ArmRounds(
    "images",
    arm_s=[1.0, 2.0],
    vanilla_s=[2.0, 4.0],
    light_s=[0.2, 0.4],
    counts=[2, 2],
    starts=[[FROM_NOISE, LogStart(True, 6, 0)], [LogStart(False, 25, 0), LogStart(False, 25, 0)]],
    instant_starts=[[LogStart(True, 6, 0)] * 2] * 2,
    heavy_steps=50,
    light_steps=12,
)


def test_throughput_figures_compare_vanilla_and_ceiling_by_round() -> None:
    vanilla, ceiling, instant = throughput_figures("log", ROUNDS, informative(), at_least(0.85))

    assert vanilla.value == 2.0
    # 1 s and half of 0.1 s; then two halves of 2 s: the hits' time at that round's costs.
    assert ROUNDS.against_ceiling(ROUNDS.starts) == [(pytest.approx(1.05), 1.0), (pytest.approx(2.0), 2.0)]
    assert (ceiling.value, ceiling.ok) == (pytest.approx(3.05 / 3.0), True)
    assert (instant.value, str(instant.target)) == (pytest.approx(0.3 / 3.0), "none")
    assert (ROUNDS.costs.heavy_step_s, ROUNDS.costs.light_step_s) == pytest.approx((6 / 200, 0.6 / 48))


def test_rounds_follow_warm_up_in_order() -> None:
    plan = LogPlan(warm_count=3, count=7, round_count=3, in_flight=1, first_seed=0)

    assert [list(rows) for rows in plan.rounds] == [[3, 4], [5, 6], [7, 8, 9]]
    assert (list(plan.warm_rows), list(plan.rows)) == ([0, 1, 2], [3, 4, 5, 6, 7, 8, 9])


# Reuse of a log


def test_retrieval_returns_nearest_stored_image_and_stores_misses() -> None:
    texts = np.eye(3, dtype=np.float32)[[0, 0, 1, 1, 2]]
    images = np.eye(3, dtype=np.float32)[[0, 1, 2, 1, 2]]

    # The first answers the second, which stores nothing for the third, although its image would fit the third's text.
    assert donors_above(texts, images, 0.9) == [0, 0, 2, 3, 2]


@pytest.mark.parametrize(("share", "hits"), [(0.0, 0), (0.4, 2), (0.5, 2), (1.0, 4)])
def test_donors_at_share_reaches_allowed_share(share: float, hits: int) -> None:
    """Rows 1 to 4 are increasingly far from row 0, in different directions; row 0 has no earlier one."""
    angles = np.array([0.0, 0.1, 0.4, 0.8, 1.3], np.float32)
    texts = np.zeros((5, 6), np.float32)
    texts[:, 0] = np.cos(angles)
    for row in range(1, 5):
        texts[row, row] = np.sin(angles[row])

    donors = donors_at_share(texts, texts, range(5), share)

    assert hit_share(donors, range(5)) == hits / 5
    assert donors == [0, *[0] * hits, *range(hits + 1, 5)]


COSTS = GenerationCosts(heavy_steps=50, light_steps=10, heavy_step_s=0.02, light_step_s=0.01)
DEAR = GenerationCosts(50, 10, 0.02, light_step_s=0.2)
LATENTS, IMAGES = ReuseTables(latents=(Threshold(0.9, 0.5),)), ReuseTables(images=(Threshold(0.3, 0.4),))
BOTH = ReuseTables(LATENTS.latents, IMAGES.images)
NEAR = ReuseTables(images=(Threshold(0.98, 0.4),))


def unit(*angles: float) -> Vectors:
    """Return unit vectors of two dimensions, at these angles in degrees."""
    radians = np.radians(angles)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


TENS = unit(*(10.0 * number for number in range(12)))
STARTS: dict[str, tuple[Callable[[], Sequence[LogStart]], list[int]]] = {
    # 20 degrees are near enough (0.94), 40 are not (0.77): the third is no hit, since the second stored nothing.
    "latent hits leave no latents": (
        lambda: log_starts(unit(0, 20, 40, 60), unit(0, 20, 40, 60), LATENTS, COSTS),
        [-1, 0, -1, 2],
    ),
    # The first image is far from every text; the second is at 50 degrees (0.64) from the third text, not from its own,
    # which comes too early.
    "images by their own vectors": (
        lambda: log_starts(unit(0, 10, 100), unit(180, 60, 90), IMAGES, COSTS),
        [-1, -1, 1],
    ),
    "images in flight": (lambda: log_starts(unit(0, 5), unit(0, 5), LATENTS, COSTS, unseen=1), [-1, -1]),
    "images before those in flight": (
        lambda: log_starts(unit(0, 50, 5), unit(0, 5, 50), LATENTS, COSTS, unseen=1),
        [-1, -1, 0],
    ),
    # Each text is only near the image before it; a sixth ancestor is one too many.
    "images of many ancestors": (lambda: log_starts(TENS, TENS, NEAR, COSTS), [-1, 0, 1, 2, 3, 4, -1, 6, 7, 8, 9, 10]),
}


@pytest.mark.parametrize(("found", "donors"), STARTS.values(), ids=STARTS)
def test_log_starts_have_allowed_donors(found: Callable[[], Sequence[LogStart]], donors: list[int]) -> None:
    assert [start.donor for start in found()] == donors


@pytest.mark.parametrize(("costs", "start"), [(COSTS, LogStart(True, 4, 0)), (DEAR, LogStart(False, 25, 0))])
def test_log_starts_choose_cheaper_start(costs: GenerationCosts, start: LogStart) -> None:
    assert log_starts(unit(0, 5), unit(0, 5), BOTH, costs)[1] == start


# Pipelined ControlNets

PROMPTS = np.linspace(0.5, 0.9, 40)[:, None]
SCATTER = np.random.default_rng(0).normal(0.0, 0.1, (40, 1))


@pytest.mark.parametrize(
    ("pipelined", "other", "bootstrap", "seeds"),
    [
        pytest.param(PROMPTS - 0.2, PROMPTS + 0.01, (0.2, False), (0.19, False), id="loss on every prompt"),
        pytest.param(PROMPTS - 0.02, PROMPTS - 0.03, (0.02, False), (0.0, True), id="loss within that of a seed"),
        pytest.param(PROMPTS + SCATTER, PROMPTS[::-1], (0.0, True), (0.0, True), id="both directions"),
    ],
)
def test_loss_has_both_readings(
    pipelined: Array, other: Array, bootstrap: tuple[float, bool], seeds: tuple[float, bool]
) -> None:
    rows = compared("edges: scorer", PROMPTS, pipelined, other)
    found = {row.name.partition(", ")[2]: (row.value, row.ok) for row in rows}

    assert found["loss beyond the paired bootstrap"] == pytest.approx(bootstrap)
    assert found["loss beyond what seeds differ by"] == pytest.approx(seeds)


def test_ideal_is_longer_first_half_plus_decoder() -> None:
    found = [ideal_s(read_pace(H800), link, 50) for link in LINKS]

    assert found == pytest.approx([50 * 0.0302 * link.slower * link.stretch for link in LINKS])
