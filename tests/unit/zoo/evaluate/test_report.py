"""EVALUATION.json: what is measured now is put beside what was measured before."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from zoo.evaluate import report
from zoo.evaluate.bar import Goal, Row
from zoo.evaluate.estimates import Estimate


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


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
