"""Test goals and rows of the bar on small arrays, and the report of an evaluation."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from zoo.drawing.captions import ATTRIBUTES
from zoo.evaluate import report
from zoo.evaluate.bar import (
    OLD_GOAL,
    Goal,
    Row,
    attribute_rows,
    clip_ratio_rows,
    clip_score_rows,
    difference_row,
    measure,
    pairs,
    ratio_row,
)
from zoo.evaluate.bar_models import as_good_by_prompt, as_good_rows, psnr
from zoo.evaluate.estimates import Estimate
from zoo.evaluate.examination import APART, SHARED, Marks


def marks_of(right: list[list[int]], asked: list[int]) -> Marks:
    """Return marks of one seed, with the count of things and their first shape alone."""
    width = len(ATTRIBUTES)
    columns = [list(ATTRIBUTES).index(name) for name in ("count", "shape")]
    seen, wanted = np.zeros((len(right), 1, width), bool), np.zeros((len(right), 1, width), bool)
    seen[:, 0, columns] = right
    wanted[:, 0, columns] = asked
    return Marks(np.zeros((len(right), 1)), seen, wanted, np.zeros((len(right), 1)))


GOALS = [
    (Goal(at_least=0.5), True),
    (Goal(at_least=0.61), False),
    (Goal(at_most=0.59), False),
    (Goal(at_least=0.5, at_most=0.65), True),
    (Goal(at_least=0.45, surely=True), True),
    (Goal(at_least=0.5, surely=True), False),
    (Goal(at_most=0.65, surely=True), False),
]


def test_goal_compares_figure_or_whole_interval() -> None:
    for goal, met in GOALS:
        assert goal.met_by(Estimate(0.6, 0.5, 0.7)) is met, goal


def test_a_row_that_is_missing_is_not_ok_and_one_without_a_goal_is() -> None:
    assert not Row("flow", "flow", None, Goal(), missing="no weights").ok
    assert Row("flow", "CLIPScore", Estimate(0.1, 0.0, 0.2)).ok


def test_attribute_rows_cover_requested_attributes() -> None:
    rows = {row.name: row for row in attribute_rows("heavy", marks_of([[1, 1], [1, 0]], [1, 1]), Goal(at_least=0.85))}

    assert set(rows) == {"count", "shape"}
    assert rows["count"].figure is not None
    assert rows["shape"].figure is not None
    assert (rows["count"].figure.value, rows["shape"].figure.value) == (1.0, 0.5)
    assert (rows["count"].ok, rows["shape"].ok) == (True, False)
    assert rows["shape"].samples == ("1:1", "1:0")


def test_a_ratio_is_of_means_and_a_difference_is_of_pairs() -> None:
    values, others = np.array([[0.2, 0.4], [0.6, 0.8]]), np.array([[0.5], [1.0]])

    compared = ratio_row("heavy", "ratio", values, others)
    apart = difference_row("heavy", "difference", values, others)

    assert compared.figure is not None
    assert apart.figure is not None
    assert compared.figure.value == pytest.approx(2.0 / 3.0)
    assert apart.figure.value == pytest.approx(-0.25)
    assert pairs(values, others) == ([[0.2, 0.4], 0.5], [[0.6, 0.8], 1.0])


def test_as_good_compares_means_over_the_seeds_and_counts_ties() -> None:
    light, heavy = np.array([[0.5, 1.0], [0.5, 0.5], [1.0, 1.0]]), np.array([[1.0, 0.5], [1.0, 0.5], [0.9, 0.9]])

    assert as_good_by_prompt(light, heavy).ravel().tolist() == [1.0, 0.0, 1.0]


def test_every_encoder_is_held_to_the_goal_of_a_clip_score() -> None:
    read = marks_of([[1, 1], [1, 0]], [1, 1])
    ours = replace(read, clip_score=np.array([[0.9], [0.9]]), score_apart=np.array([[0.3], [0.5]]))
    theirs = replace(read, clip_score=np.array([[1.0], [1.0]]), score_apart=np.array([[0.5], [0.5]]))

    rows = list(clip_ratio_rows("heavy", "reconstructions'", ours, theirs, Goal(at_least=0.85)))

    assert [row.name for row in rows] == [f"{name}, share of reconstructions'" for name in (SHARED, APART)]
    assert [row.figure.value for row in rows if row.figure] == pytest.approx([0.9, 0.8])
    assert [row.ok for row in rows] == [True, False]
    assert [row.name for row in clip_score_rows("heavy", ours)] == [SHARED, APART]
    assert [row.name for row in clip_score_rows("heavy", read)] == [SHARED]


def test_goal_of_light_share_applies_to_images_and_means() -> None:
    """For two of four prompts light is as good in one of two images; by the mean it is for none."""
    heavy = marks_of([[1, 1]] * 4, [1, 1])
    right = np.stack([heavy.right[:, 0], heavy.right[:, 0]], axis=1)
    worse = right.copy()
    worse[:, 0, list(ATTRIBUTES).index("shape")] = False
    worse[2:, 1, list(ATTRIBUTES).index("shape")] = False

    rows = {row.name: row for row in as_good_rows(replace(heavy, right=worse), replace(heavy, right=right))}

    by_picture = rows["prompts on which it is as good as heavy or better, seed by seed"]
    by_mean = rows[f"prompts on which the mean over its seeds is{OLD_GOAL}"]
    assert by_picture.figure is not None
    assert by_mean.figure is not None
    assert (by_picture.figure.value, by_mean.figure.value) == (0.25, 0.0)
    assert by_picture.goal == by_mean.goal == Goal(at_least=0.2, at_most=0.4)
    assert (by_picture.ok, by_mean.ok) == (True, False)


def test_psnr_is_of_all_pixels_together() -> None:
    assert psnr(np.array([[1.0], [3.0]]), np.array([[50.0], [50.0]])) == pytest.approx(20.0)


def test_missing_model_is_named_in_its_row(tmp_path_factory: pytest.TempPathFactory) -> None:
    from zoo.evaluate.studio import Studio

    empty = tmp_path_factory.mktemp("empty")
    told: list[str] = []

    rows = measure(Studio(empty, empty, 1, 1), ["heavy"], told.append)

    assert [row.figure for row in rows] == [None]
    assert "tiny-heavy" in rows[0].missing
    assert told[0].startswith("heavy: missing: ")


@pytest.fixture(autouse=True)
def no_studio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "Studio", lambda weights, work, count, seeds: None)


def measuring(monkeypatch: pytest.MonkeyPatch, rows: list[Row]) -> None:
    def measured(studio: object, parts: Iterable[str]) -> list[Row]:
        return [row for row in rows if row.part in parts]

    monkeypatch.setattr(report, "measure", measured)


def test_other_parts_stay_and_parts_are_in_the_bars_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = Estimate(0.91234567, 0.9, 0.92)
    measuring(monkeypatch, [Row("light", "CLIPScore", figure), Row("heavy", "shape", figure, Goal(at_least=0.95))])

    report.evaluate(tmp_path, tmp_path, ["light"], 8, 1)
    report.evaluate(tmp_path, tmp_path, ["heavy"], 4, 2)

    parts = json.loads((tmp_path / report.EVALUATION).read_text())["parts"]
    assert list(parts) == ["heavy", "light"]
    assert (parts["light"]["prompts"], parts["heavy"]["prompts"], parts["heavy"]["seeds"]) == (8, 4, 2)
    assert parts["heavy"]["figures"] == [
        {"name": "shape", "value": 0.9123, "low": 0.9, "high": 0.92, "unit": "", "goal": ">= 0.95", "ok": False}
    ]


def test_missing_model_is_named_in_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, [Row("flow", "flow", None, Goal(), missing="tiny-flow: not there")])

    rows = report.evaluate(tmp_path, tmp_path, ["flow"], 8, 1)

    assert json.loads((tmp_path / report.EVALUATION).read_text())["parts"] == {
        "flow": {"missing": "tiny-flow: not there"}
    }
    assert report.line(rows[0]) == "flow: missing: tiny-flow: not there"


@pytest.mark.parametrize(
    "goal, words",
    [
        (None, None),
        (Goal(at_least=0.75, at_most=0.9), ">= 0.75 and <= 0.9"),
        (Goal(at_least=0.0, surely=True), "> 0 by the whole interval"),
    ],
)
def test_goals_are_put_into_words(goal: Goal | None, words: str | None) -> None:
    assert report.goal_in_words(goal) == words
