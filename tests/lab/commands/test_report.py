"""Test that reports that could not be written are rejected before the load is played."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.commands.report import check_forms, report_of, show
from lab.runs import Run
from pentimento.cli import cli
from pentimento.domain.errors import FailedPrecondition, InvalidArgument


@pytest.mark.parametrize("count", ["0", "-1"])
def test_the_first_none_of_a_workload_are_no_load(count: str) -> None:
    done = CliRunner().invoke(cli, ["bench", "load", "--first", count, "--address", "unix:/nobody"])

    assert done.exit_code == 2 and "--first" in done.output


@pytest.mark.parametrize("command", ["load", "trace-study"])
def test_negative_seed_is_wrong_usage(command: str) -> None:
    log = [__file__] if command == "trace-study" else []

    done = CliRunner().invoke(cli, ["bench", command, *log, "--seed", "-1"])

    assert done.exit_code == 2 and "--seed" in done.output


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_forms([tmp_path / "nowhere" / "r.html"], 1)

    assert [violation.field for violation in refused.value.violations] == ["report"]


def test_a_png_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(FailedPrecondition, match="needs matplotlib"):
        check_forms([tmp_path / "r.png"], 1)


def test_reports_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    reports = [report_of(Run(name, {}, ()), 0.0) for name in ("one", "two")]

    show(reports, (), as_json=True)

    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == ["one", "two"]
