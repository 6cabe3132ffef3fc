"""Test the result's form: the file, the last printed line, the exit code."""

import json
import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import (
    Figure,
    Interval,
    Options,
    Target,
    at_least,
    at_most,
    between,
    counted,
    default_out,
    informative,
    measured,
    parse_options,
    publish,
    surely_above,
)
from benchmarks.statistics import binomial_interval, bootstrap_interval, paired_ratio, paired_ratio_interval
from lab.fixtures import machine


def published(tmp_path: Path, figures: list[Figure]) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "results" / "example.json"
    code = publish(Options("example", False, out), figures)
    return code, json.loads(out.read_text())


def test_result_has_every_key(tmp_path: Path) -> None:
    _, result = published(tmp_path, [measured("latency", [1.0, 2.0, 3.0], statistics.median, at_most(5, "ms"))])

    assert " ".join(result) == "benchmark figure unit target ok commit at machine seconds quick notes figures"
    (row,) = result["figures"]
    assert " ".join(row) == "name figure unit interval target ok n method"
    assert (row["figure"], row["n"]) == (2.0, 3)


def test_result_keeps_notes_without_lists_and_long_texts(tmp_path: Path) -> None:
    out = tmp_path / "example.json"
    notes = {
        "seed": 3,
        "pinned": True,
        "text": "short",
        "long": "x" * 301,
        "rows": [1],
        "parts": {"a": {"n": 1, "r": []}},
    }

    publish(Options("example", False, out), [measured("a", [1.0], statistics.median, at_most(5))], notes=notes)

    kept = {"seed": 3, "pinned": True, "text": "short", "parts": {"a": {"n": 1}}}
    assert json.loads(out.read_text())["notes"] == kept


def test_result_has_duration(tmp_path: Path) -> None:
    options = Options("example", False, tmp_path / "example.json", began_s=time.monotonic() - 3600.0)
    publish(options, [measured("latency", [1.0], statistics.median, at_most(5, "ms"))])

    assert 3600.0 <= json.loads(options.out.read_text())["seconds"] < 7200.0


def test_publish_ok_prints_ok_and_returns_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = published(tmp_path, [measured("latency", [1.0, 2.0, 3.0], statistics.median, at_most(5, "ms"))])

    assert code == 0
    assert capsys.readouterr().out.splitlines()[-1] == "figure 2 ms target <= 5 ms ok"


def test_publish_with_short_figure_returns_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = measured("latency", [1.0], statistics.median, at_most(5, "ms"))
    short = measured("hits", [0.5], statistics.mean, at_least(0.8))

    code, result = published(tmp_path, [good, short])

    assert (code, result["ok"]) == (1, False)
    assert capsys.readouterr().out.splitlines()[-1] == "figure 1 ms, 0.5 target <= 5 ms, >= 0.8 short"


def test_informative_figure_decides_nothing(tmp_path: Path) -> None:
    judged = measured("latency", [1.0], statistics.median, at_most(5, "ms"))
    beside = measured("peak", [1e9], max, informative("bytes"))

    code, result = published(tmp_path, [judged, beside])

    assert code == 0
    assert [row["name"] for row in result["figures"]] == ["latency", "peak"]


@pytest.mark.parametrize("value, ok", [(0.74, False), (0.75, True), (0.9, True), (0.91, False)])
def test_two_sided_target_checks_both_bounds(value: float, ok: bool) -> None:
    assert between(0.75, 0.9).met_by(value) is ok


@pytest.mark.parametrize("low, ok", [(-0.01, False), (0.0, False), (0.01, True)])
def test_surely_above_requires_whole_interval(low: float, ok: bool) -> None:
    figure = Figure("gain", 0.2, surely_above(0.0), [], Interval(low, 0.4, 0.95, "by hand"))

    assert figure.ok is ok


@pytest.mark.parametrize(
    "target, ok",
    [
        (at_most(2.1), True),
        (at_most(2.0), False),
        (at_least(0.9), True),
        (at_least(1.0), False),
        (between(0.9, 2.1), True),
        (between(1.0, 2.1), False),
        (between(0.9, 2.0), False),
        (informative(), True),
    ],
)
def test_figure_target_requires_whole_interval(target: Target, ok: bool) -> None:
    figure = Figure("ratio", 1.5, target, [], Interval(0.9, 2.1, 0.95, "by hand"))

    assert figure.ok is ok


@pytest.mark.parametrize("events, ok", [(0, True), (1, False)])
def test_zero_target_uses_count(events: int, ok: bool) -> None:
    assert counted("lost", events, 50, at_most(0, "requests"), samples=[]).ok is ok


def test_count_target_requires_whole_interval() -> None:
    killed = Interval(*binomial_interval(19, 20), 0.95, "Clopper-Pearson")

    assert not Figure("killed", 0.95, at_least(0.9), [], killed).ok


def test_missing_figure_is_short_and_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = published(tmp_path, [Figure("gain", None, at_least(0.5, "dB"), [], None)])

    assert (code, result["figure"]) == (1, None)
    assert capsys.readouterr().out.splitlines()[-1] == "figure missing target >= 0.5 dB short"


@pytest.mark.parametrize(
    "target", [at_most(5, "ms"), at_least(0.5), between(0.2, 0.4), surely_above(0.0, "dB"), informative("images per s")]
)
def test_figure_round_trips_through_result(tmp_path: Path, target: Target) -> None:
    figure = Figure("gain", 0.25, target, [1.0, [2.0, 3.0]], Interval(0.1, 0.3, 0.95, "by hand"))

    _, result = published(tmp_path, [figure])

    read = Figure.from_row(result["figures"][0])
    assert read == replace(figure, samples=(), read_count=2)
    assert read.row() == figure.row()


def test_bootstrap_is_reproducible_and_contains_statistic() -> None:
    samples = [float(value) for value in range(100)]

    low, high = bootstrap_interval(samples, statistics.median)

    assert (low, high) == bootstrap_interval(samples, statistics.median)
    assert low < statistics.median(samples) < high


@pytest.mark.parametrize(("count", "least_share"), [(5, 0.90), (7, 0.925), (20, 0.93)])
def test_bootstrap_of_few_samples_has_nominal_coverage(count: int, least_share: float) -> None:
    rng = random.Random(3)
    runs = [[rng.gauss(0.0, 1.0) for _ in range(count)] for _ in range(400)]

    intervals = [bootstrap_interval(run, statistics.fmean, resamples=500) for run in runs]

    assert sum(low <= 0.0 <= high for low, high in intervals) / len(runs) >= least_share


def test_zero_events_have_nonzero_interval() -> None:
    low, high = binomial_interval(0, 50)

    assert low == 0.0
    assert high == pytest.approx(1 - 0.025 ** (1 / 50), abs=1e-9)


def test_count_keeps_its_rounds_as_samples() -> None:
    figure = counted("lost", 0, 50, at_most(0, "requests"), samples=[{"round": index} for index in range(50)])

    assert figure.ok
    assert figure.row()["n"] == 50


@pytest.fixture
def nothing_known() -> Iterator[None]:
    """Clear the cached commit before and after a test."""
    machine.current_commit.cache_clear()
    yield
    machine.current_commit.cache_clear()


def test_current_commit_ignores_files_of_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_known: None
) -> None:
    written: list[str] = []

    def git(*arguments: str) -> str:
        return "f00d" if arguments[0] == "rev-parse" else "\n".join(written)

    monkeypatch.setattr("benchmarks.report.signal.signal", lambda number, handler: None)
    monkeypatch.setattr("sys.argv", ["name", "--out", str(tmp_path / "result.json")])
    monkeypatch.setattr(machine, "git", git)

    options = parse_options("name", None)
    written.append(" M zoo/weights/pipelining-bounds.json")
    publish(options, [Figure("a", 1.0, at_most(2.0), [1.0], None)])

    assert json.loads(options.out.read_text())["commit"] == "f00d"


def test_quick_run_does_not_replace_result() -> None:
    assert default_out("example", quick=True) != default_out("example", quick=False)


def publish_from(monkeypatch: pytest.MonkeyPatch, commit: str, out: Path, value: float, *, quick: bool = False) -> None:
    monkeypatch.setattr("benchmarks.report.current_commit", lambda: commit)
    interval = Interval(value - 0.5, value + 0.5, 0.95, "by hand")
    publish(Options("example", quick, out), [Figure("latency", value, at_most(5, "ms"), [value, value], interval)])


def test_result_replaces_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "example.json"
    out.write_text('{"benchmark": ')

    publish_from(monkeypatch, "cafe", out, 2.0)

    assert json.loads(out.read_text())["figure"] == 2.0


def test_paired_ratio_interval_uses_students_t() -> None:
    pairs = [(math.exp(log), 1.0) for log in (0.1, 0.2, 0.3)]

    low, high = paired_ratio_interval(pairs)

    assert paired_ratio(pairs) == pytest.approx(math.exp(0.2))
    assert (math.log(low), math.log(high)) == pytest.approx((0.2 - 4.303 * 0.1 / 3**0.5, 0.2 + 4.303 * 0.1 / 3**0.5))


def test_out_option_rejects_directory_before_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["name", "--out", str(tmp_path)])

    with pytest.raises(SystemExit):
        parse_options("name", None)

    assert f"argument --out: must be a file, {tmp_path} is a directory" in capsys.readouterr().err
