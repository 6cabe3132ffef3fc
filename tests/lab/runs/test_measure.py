"""Test the result's form: the file, the last printed line, the exit code."""

import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lab.runs import machine
from lab.runs.measure import (
    Figure,
    Interval,
    Options,
    Target,
    at_least,
    at_most,
    between,
    counted,
    default_out,
    drawn_orders,
    informative,
    interleave,
    measured,
    parse_options,
    publish,
    share,
    surely_above,
)

BENCHMARK = """
import subprocess, sys, time
from lab.runs.measure import parse_options
parse_options("example", None)
with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as server:
    try:
        print(server.pid, flush=True)
        time.sleep(600)
    finally:
        server.terminate()
"""
LATENCY = measured("latency", [1.0, 2.0, 3.0], statistics.median, at_most(5, "ms"))


def published(tmp_path: Path, figures: list[Figure]) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "results" / "example.json"
    code = publish(Options("example", False, out), figures, notes={"seed": 3})
    return code, json.loads(out.read_text())


def test_result_has_every_key(tmp_path: Path) -> None:
    _, result = published(tmp_path, [LATENCY])

    assert " ".join(result) == "benchmark figure unit target ok commit at machine seconds quick notes figures"
    (row,) = result["figures"]
    assert " ".join(row) == "name figure unit interval target ok n method"
    assert (row["figure"], row["n"], result["notes"]) == (2.0, 3, {"seed": 3})


def test_result_has_duration_and_replaces_unreadable_file(tmp_path: Path) -> None:
    options = Options("example", False, tmp_path / "example.json", began_s=time.monotonic() - 3600.0)
    options.out.write_text('{"benchmark": ')

    publish(options, [LATENCY])

    assert 3600.0 <= json.loads(options.out.read_text())["seconds"] < 7200.0


@pytest.mark.parametrize(
    ("figures", "code", "last"),
    [
        pytest.param([LATENCY], 0, "figure 2 ms target <= 5 ms ok", id="reached"),
        pytest.param(
            [LATENCY, measured("hits", [0.5], statistics.mean, at_least(0.8))],
            1,
            "figure 2 ms, 0.5 target <= 5 ms, >= 0.8 short",
            id="one short",
        ),
        pytest.param(
            [LATENCY, measured("peak", [1e9], max, informative("bytes"))],
            0,
            "figure 2 ms target <= 5 ms ok",
            id="informative decides nothing",
        ),
        pytest.param(
            [Figure("gain", None, at_least(0.5, "dB"))], 1, "figure missing target >= 0.5 dB short", id="missing"
        ),
    ],
)
def test_publish_prints_verdict_and_returns_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], figures: list[Figure], code: int, last: str
) -> None:
    found, result = published(tmp_path, figures)

    assert (found, result["ok"], result["figure"]) == (code, code == 0, figures[0].value)
    assert [row["name"] for row in result["figures"]] == [figure.name for figure in figures]
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_two_sided_target_checks_both_bounds() -> None:
    assert [between(0.75, 0.9).met_by(value) for value in (0.74, 0.75, 0.9, 0.91)] == [False, True, True, False]


TARGETS: list[tuple[Target, float, float, bool]] = [
    (at_most(2.0), 0.9, 2.1, False),
    (at_least(0.9), 0.9, 2.1, True),
    (at_least(1.0), 0.9, 2.1, False),
    (between(1.0, 2.1), 0.9, 2.1, False),
    (between(0.9, 2.0), 0.9, 2.1, False),
    (informative(), 0.9, 2.1, True),
    (surely_above(0.0), 0.0, 0.4, False),
    (surely_above(0.0), 0.01, 0.4, True),
]


def test_figure_target_requires_whole_interval() -> None:
    for target, low, high, ok in TARGETS:
        assert Figure("ratio", 0.2, target, 0, Interval(low, high, "by hand")).ok is ok, (target, low, high)


@pytest.mark.parametrize("events, ok", [(0, True), (1, False)])
def test_zero_target_uses_count(events: int, ok: bool) -> None:
    figure = counted("lost", events, 50, at_most(0, "requests"))

    assert (figure.ok, figure.row()["n"]) == (ok, 50)


def test_share_target_requires_whole_interval() -> None:
    killed = share("killed", 19, 20, at_least(0.9))

    assert (killed.value, killed.n, killed.ok) == (0.95, 20, False)
    assert share("killed", 0, 0, at_least(0.9)) == Figure("killed", None, at_least(0.9))


def test_figure_round_trips_through_result(tmp_path: Path) -> None:
    targets = (at_most(5, "ms"), at_least(0.5), between(0.2, 0.4), surely_above(0.0, "dB"), informative("images per s"))
    figures = [Figure("gain", 0.25, target, 2, Interval(0.1, 0.3, "by hand")) for target in targets]

    _, result = published(tmp_path, figures)

    assert [Figure.from_row(row) for row in result["figures"]] == figures


def test_interleave_calls_every_side_once_a_round() -> None:
    called: list[tuple[str, int]] = []

    def side(name: str, number: int) -> int:
        called.append((name, number))
        return 10 * number

    kept = interleave({"a": lambda n: side("a", n), "b": lambda n: side("b", n)}, 30, seed=1, first=5)

    assert kept == {"a": list(range(50, 350, 10)), "b": list(range(50, 350, 10))}
    assert [number for _, number in called] == [number for number in range(5, 35) for _ in kept]
    firsts = {name for name, _ in called[::2]}
    assert firsts == {"a", "b"}


def test_drawn_orders_of_one_seed_are_equal() -> None:
    one, again, other = (list(drawn_orders("abcd", 20, seed)) for seed in (1, 1, 2))

    assert one == again != other
    assert all(sorted(order) == ["a", "b", "c", "d"] for order in one)


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

    monkeypatch.setattr("lab.runs.measure.signal.signal", lambda number, handler: None)
    monkeypatch.setattr("sys.argv", ["name", "--out", str(tmp_path / "result.json")])
    monkeypatch.setattr(machine, "git", git)

    options = parse_options("name", None)
    written.append(" M zoo/weights/pipelining-bounds.json")
    publish(options, [LATENCY])

    assert json.loads(options.out.read_text())["commit"] == "f00d"


def test_quick_run_does_not_replace_result() -> None:
    assert default_out("example", quick=True) != default_out("example", quick=False)


def test_out_option_rejects_directory_before_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["name", "--out", str(tmp_path)])

    with pytest.raises(SystemExit):
        parse_options("name", None)

    assert f"argument --out: must be a file, {tmp_path} is a directory" in capsys.readouterr().err


def test_ended_benchmark_ends_its_servers() -> None:
    with subprocess.Popen([sys.executable, "-c", BENCHMARK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as one:
        assert one.stdout is not None
        server = int(one.stdout.readline())

        one.send_signal(signal.SIGTERM)
        one.wait()

    assert not psutil.pid_exists(server)
