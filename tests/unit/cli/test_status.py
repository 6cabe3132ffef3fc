"""Test exit codes and JSON lines of `pentimento status` without answers."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from pentimento.cli import status


def test_status_without_answers_exits_with_1(tmp_path: Path) -> None:
    nobody = f"unix:{tmp_path / 'nobody'}"
    addresses = [f"--{name}-address={nobody}" for name in ("controller", "frontdoor", "gateway")]

    plain, document = (CliRunner().invoke(status.status, [*addresses, *more]) for more in ((), ("--json",)))

    assert (plain.exit_code, document.exit_code) == (1, 1)
    assert "controller does not answer" in plain.output
    assert json.loads(document.output)["fleet"] is None


def test_status_watch_prints_a_json_line_per_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It continues although no process answers."""
    nobody = f"unix:{tmp_path / 'nobody'}"
    addresses = [f"--{name}-address={nobody}" for name in ("controller", "frontdoor", "gateway")]
    looks = iter(range(3))

    async def sleep(seconds: float) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(status, "asyncio", SimpleNamespace(run=asyncio.run, sleep=sleep))
    record = tmp_path / "record"

    done = CliRunner().invoke(status.status, [*addresses, "--watch", "--json", f"--record={record}"])

    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(documents) == 4
    assert all(sorted(one["unanswered"]) == ["controller", "frontdoor", "gateway"] for one in documents)
    times = [one["at_ms"] for one in documents]
    assert times == sorted(times) and times[0] > 1_700_000_000_000
    assert (done.exit_code, record.read_text()) == (1, "")
