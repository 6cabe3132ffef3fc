"""Test `cache_value`'s figures of rounds and of scored images with known values."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cache_value import reason_counts, saved_counts, starts_of_served
from benchmarks.image_scorers import check_scorers
from benchmarks.report import Figure, at_least, informative
from benchmarks.retrieval_baseline import donors_above, donors_at_share, hit_share
from benchmarks.reuse_ceiling import FROM_NOISE, LogStart
from benchmarks.reuse_quality import IMAGES_GATE, LATENTS_GATE, Array, Distances, ScoredImages
from benchmarks.value_figures import ArmRounds, failing_control, quality_figures, throughput_figures
from benchmarks.value_runs import ARMS, LogPlan, ServedImage, in_turns
from pentimento.domain.errors import NotFound
from zoo.drawing.captions import ATTRIBUTES
from zoo.evaluate.examination import COLUMNS

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


def judged(score: float, right: bool, count: int = 8) -> ScoredImages:
    """Return images with every attribute requested, all right or all wrong."""
    shape = count, len(ATTRIBUTES)
    scores: Array = np.full(count, score)
    return ScoredImages(scores, scores, np.full(shape, right), np.full(shape, True), scores[:, None])


def test_throughput_figures_compare_vanilla_and_ceiling_by_round() -> None:
    vanilla, ceiling, instant = throughput_figures("log", ROUNDS, informative(), at_least(0.85))

    assert vanilla.value == 2.0
    # 1 s and half of 0.1 s; then two halves of 2 s: the hits' time at that round's costs.
    assert [pair[0] for pair in ceiling.samples] == pytest.approx([1.05, 2.0])
    assert (ceiling.value, ceiling.ok) == (pytest.approx(3.05 / 3.0), True)
    assert (instant.value, str(instant.target)) == (pytest.approx(0.3 / 3.0), "none")


def test_costs_use_vanilla_and_all_light_of_all_rounds() -> None:
    assert (ROUNDS.costs.heavy_step_s, ROUNDS.costs.light_step_s) == pytest.approx((6 / 200, 0.6 / 48))


def test_gate_passes_equal_images_and_fails_worse_ones() -> None:
    vanilla, near, far = judged(0.8, True), Distances(1.0, 2.0, 6.0), Distances(5.0, 2.0, 6.0)

    attributes = {f"arm: {name} right ÷ vanilla's" for name in COLUMNS}
    distance = {LATENTS_GATE: "distance ÷ that of vanilla's two seeds", IMAGES_GATE: "excess ÷ all-light's"}
    for gate in (LATENTS_GATE, IMAGES_GATE):
        assert all(figure.ok for figure in quality_figures("arm", judged(0.8, True), vanilla, near, gate))
        failed = {
            figure.name for figure in quality_figures("arm", judged(0.7, False), vanilla, far, gate) if not figure.ok
        }
        assert failed == {"arm: CLIPScore ÷ vanilla's", f"arm: Fréchet {distance[gate]}", *attributes}


def test_image_gate_has_higher_score_bound() -> None:
    vanilla, ours, near = judged(1.0, True), judged(0.97, True), Distances(1.0, 2.0, 6.0)

    short = [
        [figure.name for figure in quality_figures("arm", ours, vanilla, near, gate) if not figure.ok]
        for gate in (LATENTS_GATE, IMAGES_GATE)
    ]

    assert short == [[], ["arm: CLIPScore ÷ vanilla's"]]


def test_control_must_fail_a_figure() -> None:
    passed, failed = (Figure("score", value, at_least(0.98), [], None) for value in (0.99, 0.5))

    assert (failing_control("light", [passed]).ok, failing_control("light", [passed, failed]).ok) == (False, True)


def test_retrieval_returns_nearest_stored_image_and_stores_misses() -> None:
    texts = np.eye(3, dtype=np.float32)[[0, 0, 1, 1, 2]]
    images = np.eye(3, dtype=np.float32)[[0, 1, 2, 1, 2]]

    # The first answers the second, which stores nothing for the third, although its image would fit the third's text.
    assert donors_above(texts, images, 0.9) == [0, 0, 2, 3, 2]


def test_rounds_follow_warm_up_in_order() -> None:
    plan = LogPlan(warm_count=3, count=7, round_count=3, in_flight=1, first_seed=0)

    assert [list(rows) for rows in plan.rounds] == [[3, 4], [5, 6], [7, 8, 9]]
    assert (list(plan.warm_rows), list(plan.rows)) == ([0, 1, 2], [3, 4, 5, 6, 7, 8, 9])


def test_arms_alternate_direction() -> None:
    assert list(in_turns(0)) == list(in_turns(1))[::-1] == list(ARMS)


def test_saved_counts_group_by_kind_and_steps() -> None:
    noise = ServedImage(b"", "tiny-heavy", "noise", 0, "miss: nearest similarity 0.8, needed 0.938")
    image = replace(noise, model="tiny-light", kind="image", saved_steps=7)

    assert saved_counts([noise, image, image]) == {"image 7": 2, "noise 0": 1}
    assert reason_counts([noise, noise, image]) == {"miss: nearest similarity #, needed #": 2}
    assert starts_of_served([noise, image]) == [FROM_NOISE, LogStart(True, 7)]


def test_check_scorers_names_training_command(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=rf"pentimento zoo train judge --work {tmp_path}"):
        check_scorers(tmp_path, tmp_path)
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "checkpoint.safetensors").touch()
    with pytest.raises(NotFound, match=r"zoo train dual-encoder --seed 5"):
        check_scorers(tmp_path, tmp_path)


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


def test_hit_share_covers_given_rows() -> None:
    texts = np.ones((4, 1), np.float32)

    assert hit_share([0, 0, 2, 2], [2, 3]) == 0.5
    assert donors_at_share(texts, texts, [0], 0.0) == [0, 0, 0, 0]
