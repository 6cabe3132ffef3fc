"""Test results assembled from parts that are measured one at a time."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from lab.runs.measure import Figure, Options, at_least, publish
from lab.runs.parts import PartResult, merge_parts, publish_parts

ORDER = ["first", "second", "third"]


def reached(name: str, value: float = 1.0, **notes: int) -> PartResult:
    return PartResult([Figure(f"{name}: figure", value, at_least(0.5), 1)], notes)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Write a result that has the first part, and the second without a figure."""
    out = tmp_path / "result.json"
    figures, notes = merge_parts(None, ORDER, {"first": reached("first", prompts=3)})
    publish(Options("example", False, out), figures, notes={"parts": notes})
    return out


@pytest.mark.parametrize(
    ("found", "values", "noted"),
    [
        pytest.param(
            {"second": reached("second", 2.0, prompts=4)},
            {"first: figure": 1.0, "second: figure": 2.0, "third: missing": None},
            {"first": {"prompts": 3}, "second": {"prompts": 4}, "third": {"missing": "not measured yet"}},
            id="keeps others and adds",
        ),
        pytest.param(
            {"first": reached("first", 3.0)},
            {"first: figure": 3.0, "second: missing": None, "third: missing": None},
            {},
            id="replaces",
        ),
        pytest.param(
            {name: PartResult(missing="no scorer") for name in ORDER[:2]},
            {"first: figure": 1.0, "second: missing": None, "third: missing": None},
            {"first": {"prompts": 3}, "second": {"missing": "no scorer"}},
            id="unmeasurable keeps earlier figures",
        ),
    ],
)
def test_merged_parts_have_figures_in_order(
    out: Path,
    found: Mapping[str, PartResult],
    values: dict[str, float | None],
    noted: dict[str, dict[str, object]],
) -> None:
    figures, notes = merge_parts(out, ORDER, found)

    assert {figure.name: figure.value for figure in figures} == values
    assert all(noted[part].items() <= dict(notes[part]).items() for part in noted)
    lacking = [part for part in found if found[part].missing and "not_measured_again" in notes[part]]
    assert lacking == (["first"] if "first" in found and found["first"].missing else [])


@pytest.mark.parametrize(("result", "code"), [(reached("first"), 0), (PartResult(missing="no scorer"), 1)])
def test_run_with_unmeasured_part_returns_1(out: Path, result: PartResult, code: int) -> None:
    options = Options("example", False, out, {"only": ["first"]})

    assert publish_parts(options, ["first"], {"first": result}, {"threads": 1}) == code
    assert json.loads(out.read_text())["figure"] == 1.0
