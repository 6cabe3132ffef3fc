"""The result form: what is written, what is printed last, which exit code."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import Figure, Options, at_least, at_most, counted, informative, measured, publish
from benchmarks.statistics import binomial_interval, bootstrap_interval


def published(tmp_path: Path, figures: list[Figure]) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "results" / "example.json"
    code = publish(Options("example", False, out), figures)
    return code, json.loads(out.read_text())


def test_result_has_every_key_of_the_form(tmp_path: Path) -> None:
    _, result = published(tmp_path, [measured("latency", [1.0, 2.0, 3.0], statistics.median, at_most(5, "ms"))])

    form = "benchmark figure target ok machine commit at n confidence_interval samples figures"
    assert set(form.split()) <= set(result)
    assert result["samples"] == [1.0, 2.0, 3.0]
    assert result["n"] == 3


def test_last_line_says_ok_and_exit_code_is_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = published(tmp_path, [measured("latency", [1.0, 2.0, 3.0], statistics.median, at_most(5, "ms"))])

    assert code == 0
    assert capsys.readouterr().out.splitlines()[-1] == "figure 2 ms target <= 5 ms ok"


def test_one_short_figure_makes_the_whole_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = measured("latency", [1.0], statistics.median, at_most(5, "ms"))
    short = measured("hits", [0.5], statistics.mean, at_least(0.8))

    code, result = published(tmp_path, [good, short])

    assert (code, result["ok"]) == (1, False)
    assert capsys.readouterr().out.splitlines()[-1] == "figure 1 ms, 0.5 target <= 5 ms, >= 0.8 short"


def test_informative_row_decides_nothing(tmp_path: Path) -> None:
    judged = measured("latency", [1.0], statistics.median, at_most(5, "ms"))
    beside = measured("peak", [1e9], max, informative("bytes"))

    code, result = published(tmp_path, [judged, beside])

    assert code == 0
    assert [row["name"] for row in result["figures"]] == ["latency", "peak"]


def test_bootstrap_is_reproducible_and_holds_the_statistic() -> None:
    samples = [float(value) for value in range(100)]

    low, high = bootstrap_interval(samples, statistics.median)

    assert (low, high) == bootstrap_interval(samples, statistics.median)
    assert low < statistics.median(samples) < high


def test_no_event_in_fifty_trials_does_not_claim_certainty() -> None:
    low, high = binomial_interval(0, 50)

    assert low == 0.0
    assert high == pytest.approx(1 - 0.025 ** (1 / 50), abs=1e-9)


def test_count_keeps_its_rounds_as_samples() -> None:
    figure = counted("lost", 0, 50, at_most(0, "requests"), samples=[{"round": index} for index in range(50)])

    assert figure.ok
    assert figure.row()["n"] == 50
