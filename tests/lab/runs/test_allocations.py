"""Test the allocation over time: samples, their file, and their panels."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from lab.commands.allocation import draw
from lab.runs.allocations import allocation_panels, read_samples
from pentimento.cli.allocation_samples import AllocationSample, sample_line, sample_of_plan
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import CascadePlan, Plan, StagePlan, StartThreshold, WorkerAssignment
from pentimento.domain.generation import PlanVersion

PLAN = Plan(
    PlanVersion(7, 2),
    (
        WorkerAssignment("w1", "unix:/w1", "light", 1),
        WorkerAssignment("w2", "unix:/w2", "heavy", 1),
        WorkerAssignment("w3", "unix:/w3", "light", 1),
    ),
    admission_rate=0.5,
    allocator="diffserve",
    cascades=(
        CascadePlan(
            "light>heavy",
            (StagePlan("light", (StartThreshold("noise", 0.6), StartThreshold("image", 0.4))), StagePlan("heavy")),
        ),
    ),
)
FIRST = sample_of_plan(1.0, PLAN, accepted_count=10, completed_count=8, failed_count=1, rejected_count=0)
SECOND = replace(FIRST, at_s=2.0, workers={"heavy": 3}, thresholds={}, accepted_count=16, rejected_count=2)


def test_second_record_in_a_file_continues_its_times(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    times = (0.0, 1.0, 2.0, 0.25, 1.25, 0.5)
    file.write_text("".join(sample_line(replace(FIRST, at_s=at_s)) for at_s in times))

    assert [sample.at_s for sample in read_samples(file)] == [0.0, 1.0, 2.0, 2.25, 3.25, 3.75]


def test_samples_come_back_from_their_file(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    file.write_text(sample_line(FIRST) + sample_line(SECOND))

    assert read_samples(file) == (FIRST, SECOND)


def test_a_line_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    for line in ("{", '{"at_s": 1.0}', '{"at_s": "x", "plan": "1.1"}', "[]"):
        file.write_text(sample_line(FIRST) + line + "\n")

        with pytest.raises(InvalidArgument, match="jsonl:2"):
            read_samples(file)


def test_a_file_of_bytes_is_no_record(tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(b"\x89PNG")

    with pytest.raises(InvalidArgument, match="must be UTF-8 text"):
        read_samples(file)


def test_panels_show_missing_workers_and_thresholds() -> None:
    allocation, thresholds, admission, violations = allocation_panels((FIRST, SECOND))

    assert {series.name: series.y for series in allocation.series} == {"heavy": (1.0, 3.0), "light": (2.0, 0.0)}
    assert thresholds.series[0].y[0] == 0.6 and math.isnan(thresholds.series[0].y[1])
    assert admission.series[0].y == (0.5, 0.5)
    assert (violations.series[0].x, violations.series[0].y) == ((2.0,), (0.25,))


def test_panel_without_points_is_not_drawn() -> None:
    assert [panel.title for panel in allocation_panels((AllocationSample(0.0, "1.1"),))] == ["Admission"]


def test_a_record_is_drawn(tmp_path: Path) -> None:
    file, output = tmp_path / "record.jsonl", tmp_path / "page.svg"
    file.write_text(sample_line(FIRST) + sample_line(SECOND))

    draw(file, None, output)

    page = output.read_text()
    assert all(word in page for word in ("Allocation", "Confidence thresholds", "Violations", "light&gt;heavy light"))


@pytest.mark.parametrize(("name", "field"), [("page.html", "output"), ("absent/page.svg", "output")])
def test_wrong_output_is_rejected_first(tmp_path: Path, name: str, field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        draw(tmp_path / "record.jsonl", None, tmp_path / name)


def test_an_empty_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "record.jsonl").write_text("")

    with pytest.raises(InvalidArgument, match="at least one look"):
        draw(tmp_path / "record.jsonl", None, tmp_path / "page.svg")
