"""Test the report of a run, and its text, JSON, HTML and PNG."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lab.runs import (
    Outcome,
    Report,
    RequestRecord,
    StageSpan,
    StartKind,
    as_html,
    as_json,
    as_text,
    make_report,
    save_panels,
    save_png,
)
from lab.runs.panels import bars, panels
from lab.runs.svg import bars_svg, nice_limit, panel_svg, sheet_svg
from pentimento.domain.errors import FailedPrecondition, InvalidArgument

SVG = "{http://www.w3.org/2000/svg}"


def records(count: int = 40, latency_s: float = 2.0) -> list[RequestRecord]:
    """Return one request a second; every fourth misses its deadline, every tenth is refused on arrival."""
    made = []
    for index in range(count):
        came, late = float(index), index % 4 == 3
        ended = came + (2 * latency_s if late else latency_s)
        record = RequestRecord(
            request_id=f"r{index}",
            tenant="ab"[index % 2],
            slo_class=("fast", "slow")[index % 2],
            pool="heavy",
            arrived_s=came,
            deadline_s=1.5 * latency_s,
            ended_s=ended,
            outcome=Outcome.LATE if late else Outcome.COMPLETED,
            start=StartKind.LATENT if index % 2 else StartKind.NOISE,
            start_step=20 if index % 2 else 0,
            steps=50,
            quality=0.5,
            stages=(StageSpan("queue", came, came + 0.5), StageSpan("denoise", came + 0.5, ended)),
            device_s=1.0,
        )
        if index % 10 == 0:
            record = replace(record, outcome=Outcome.REJECTED, ended_s=came, stages=(), device_s=0.0, quality=None)
        made.append(record)
    return made


@pytest.fixture
def report() -> Report:
    return make_report("live", records(), {"kind": "live"})


def test_report_of_small_run_has_its_figures(report: Report) -> None:
    assert report.duration_s == 43.0
    assert (report.overall.total, report.overall.violations) == (40, 14)
    assert report.goodput == pytest.approx(26 / 43) and report.throughput == pytest.approx(36 / 43)
    assert report.quality == 0.5
    assert report.steps_saved == pytest.approx(20 * 20 / (36 * 50))
    assert report.device_s_per_answer == 1.0
    assert set(report.classes) == {"fast", "slow"} and report.classes["fast"].counts[Outcome.REJECTED] == 4
    assert len(report.timeline) == 40


def test_warm_up_is_left_out_of_every_figure() -> None:
    whole = make_report("live", records(), window_s=5.0)
    rest = make_report("live", records(), warm_up_s=20.0, window_s=5.0)

    assert rest.overall.total == 20
    assert rest.duration_s == whole.duration_s - 20.0
    assert rest.timeline[0].arrived == 5
    assert [stage.began_s for stage in rest.stages[:2]] == [0.0, 0.5]


def test_run_without_requests_has_a_report() -> None:
    empty = make_report("nothing", [])

    assert empty.goodput == 0.0 and math.isnan(empty.overall.slo_attainment)
    assert json.loads(as_json(empty))["overall"]["slo_attainment"] is None
    assert "nothing" in as_text([empty]) and "<svg" not in as_html([empty])


def test_text_has_a_column_per_run(report: Report) -> None:
    other = make_report("simulated", records(latency_s=3.0), {"kind": "simulated"})

    lines = as_text([report, other]).splitlines()

    assert lines[0].split() == ["live", "simulated"]
    p50 = next(line for line in lines if line.startswith("latency p50 s"))
    assert p50.split()[-2:] == ["2", "3"]
    assert any(line.startswith("denoise") for line in lines)


def test_text_numbers_runs_of_one_name(report: Report) -> None:
    head = as_text([report, make_report("other", records()), report]).splitlines()[0]

    assert head.split() == ["live", "(1)", "other", "live", "(2)"]


def test_page_has_the_provenance_of_each_run() -> None:
    page = as_html([make_report("live", records(), {"workload": name}) for name in ("morning", "evening")])

    assert "morning" in page and "evening" in page


def test_text_is_blank_for_a_missing_class(report: Report) -> None:
    other = make_report("other", [replace(record, slo_class="odd") for record in records()])

    line = next(line for line in as_text([report, other]).splitlines() if line.startswith("odd"))

    assert line.split() == ["odd", "–", "of", "0", "65.0", "%", "of", "40"]


def test_json_leaves_out_single_latencies(report: Report) -> None:
    document = json.loads(as_json(report))

    assert document["provenance"] == {"kind": "live"}
    assert document["classes"]["fast"]["counts"]["rejected"] == 4
    assert document["overall"]["slo_attainment"] == pytest.approx(0.65)
    assert document["starts"]["latent"] == pytest.approx(20 / 36)
    assert "latencies_s" not in document


def test_page_escapes_names() -> None:
    page = as_html([make_report("<script>alert(1)</script>", records(), {"kind": "</pre>"})])

    assert "<script>" not in page and "&lt;script&gt;" in page and "&lt;/pre&gt;" in page
    assert page.count("<svg") == 5 and page.count("<table>") == 3


def test_drawings_are_well_formed(report: Report) -> None:
    for panel in panels([report, make_report("a & b", records())]):
        root = ElementTree.fromstring(panel_svg(panel))
        lines = root.findall(f"{SVG}polyline")
        assert len(lines) >= 2


def test_characters_not_allowed_in_xml_are_replaced() -> None:
    """A run's file may have any name: control characters, halves of surrogate pairs."""
    report = make_report("a\x00\x1b\ud800\uffff\tb", records(), {"policy": "\x7f\udcff"})
    drawn = [sheet_svg(report.name, panels([report]), ""), bars_svg(bars([report]))]

    for document in drawn:
        texts = [element.text for element in ElementTree.fromstring(document.encode()).iter(f"{SVG}text")]
        assert "a\ufffd\ufffd\ufffd\ufffd\tb" in texts
    assert "a\ufffd\ufffd\ufffd\ufffd\tb" in as_html([report]).encode().decode()


def test_latency_curve_ends_at_answered_share(report: Report) -> None:
    (curve,) = panels([report])[0].series

    assert curve.y[-1] == pytest.approx(36 / 40)
    assert curve.x[-1] == 4.0


def test_quality_is_drawn_only_if_measured() -> None:
    plain = make_report("plain", [replace(record, quality=None) for record in records()])

    assert [panel.title for panel in panels([plain])] == ["Latency", "Goodput", "Violations"]


def test_axes_end_at_round_numbers() -> None:
    limits = [nice_limit(value) for value in (0.93, 1.0, 1.1, 23, 260, 0)]

    assert limits == pytest.approx([1.0, 1.0, 2.0, 25, 500, 1])


@pytest.mark.parametrize(
    "names", [("live", "two runs"), (r"$\nobody$", r"$\nothing$")], ids=["plain", "like a formula"]
)
def test_png_is_drawn(names: tuple[str, str], tmp_path: Path) -> None:
    name, title = names
    save_png([make_report(name, records()), make_report("other", records(latency_s=3.0))], tmp_path / "r.png", title)

    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the figures instead of writing them."""
    from matplotlib.figure import Figure

    drawn: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    return drawn


def test_png_has_bars_for_runs_of_one_name(report: Report, figures: list[Any], tmp_path: Path) -> None:
    save_png([report, report], tmp_path / "r.png")

    assert [bar.get_text() for bar in figures[0].axes[-1].get_yticklabels()] == ["live (1)", "live (2)"]


def test_png_legend_has_a_name_with_underscore(figures: list[Any], tmp_path: Path) -> None:
    save_png([make_report("_base", records())], tmp_path / "r.png")

    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["_base"]


def test_panels_have_a_legend_of_every_name(report: Report, figures: list[Any], tmp_path: Path) -> None:
    save_panels(panels([report, make_report("_base", records())]), tmp_path / "r.png")

    assert [text.get_text() for text in figures[0].axes[0].get_legend().get_texts()] == ["live", "_base"]


def test_png_without_matplotlib_fails(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(FailedPrecondition, match="needs matplotlib"):
        save_png([report], tmp_path / "r.png")


def test_warm_up_below_zero_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="warm_up_s"):
        make_report("x", [], warm_up_s=-1.0)
