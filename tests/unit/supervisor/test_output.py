"""Write the lines of a suite, and handle lines that cannot be written."""

import os
import threading
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path

import pytest

from pentimento.supervisor.output import MAX_LOG_BYTES, MAX_PENDING_CHARS, LogFiles, LogView, Outlet

FULL = OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the time that output gets at its end, for busy machines."""
    monkeypatch.setattr(Outlet, "close", partialmethod(Outlet.close, wait_s=60.0))


class Paper:
    """The target of an outlet. A write blocks until `free` is set, and fails for `jammed` lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.jammed: Callable[[str], bool] = lambda line: False
        self.began = threading.Event()
        self.free = threading.Event()
        self.free.set()

    def write(self, source: str, line: str) -> None:
        self.began.set()
        assert self.free.wait(60)
        if self.jammed(line):
            raise FULL
        self.lines.append((source, line))


def test_lines_come_out_in_order() -> None:
    paper = Paper()
    outlet = Outlet("test", paper.write)

    for number in range(100):
        outlet.put("worker", str(number))
    outlet.close()

    assert paper.lines == [("worker", str(number)) for number in range(100)]


def test_blocked_writer_delays_no_source_and_lost_lines_are_counted() -> None:
    paper = Paper()
    paper.free.clear()
    outlet = Outlet("test", paper.write)
    outlet.put("worker", "first")
    assert paper.began.wait(60)

    for _ in range(10):
        outlet.put("worker", "x" * (MAX_PENDING_CHARS // 4))
    paper.free.set()
    outlet.close()

    assert paper.lines[:2] == [("worker", "first"), ("worker", "… 6 lines are missing here")]
    assert len(paper.lines) == 2 + 4


def test_failed_line_is_counted_and_next_ones_are_written() -> None:
    paper = Paper()
    failures: list[str] = []
    paper.jammed = lambda line: len(failures) < 2
    outlet = Outlet("test", paper.write, lambda source, error: failures.append(f"{source}: {error.strerror}"))

    for line in ("lost 1", "lost 2", "kept"):
        outlet.put("worker", line)
    outlet.close()

    assert paper.lines == [("worker", "… 2 lines are missing here"), ("worker", "kept")]
    assert failures == ["worker: No space left on device"] * 2


def test_lost_lines_are_counted_per_source() -> None:
    paper = Paper()
    paper.jammed = lambda line: line == "lost"
    outlet = Outlet("test", paper.write)

    outlet.put("worker", "lost")
    outlet.put("frontdoor", "kept")
    outlet.close()

    assert paper.lines == [("frontdoor", "kept")]


def test_closing_does_not_wait_for_a_writer_that_blocks() -> None:
    paper = Paper()
    paper.free.clear()
    outlet = Outlet("test", paper.write)
    outlet.put("worker", "first")

    outlet.close(wait_s=0.01)

    assert paper.lines == []
    paper.free.set()


def test_a_log_that_grew_large_is_put_aside(tmp_path: Path) -> None:
    files = LogFiles(tmp_path)
    with (tmp_path / "worker.log").open("wb") as log:
        log.truncate(MAX_LOG_BYTES)

    files.write("worker", "a fresh page")

    files.close()
    assert (tmp_path / "worker.log").read_text() == "a fresh page\n"
    assert (tmp_path / "worker.log.1").stat().st_size == MAX_LOG_BYTES


def test_a_log_is_written_again_once_it_can_be(tmp_path: Path) -> None:
    files = LogFiles(tmp_path)
    (tmp_path / "worker.log").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        files.write("worker", "lost")
    (tmp_path / "worker.log").unlink()

    files.write("worker", "kept")

    files.close()
    assert (tmp_path / "worker.log").read_text() == "kept\n"


def put_aside_already(log: Path) -> None:
    """Fill the log to its limit, and block its second name."""
    with log.open("wb") as file:
        file.truncate(MAX_LOG_BYTES)
    (log.with_suffix(".log.1") / "in the way").mkdir(parents=True)


@pytest.mark.parametrize("spoil", [put_aside_already, Path.mkdir])
def test_a_log_that_cannot_be_opened_or_put_aside_fails_alone(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(tmp_path / "worker.log")
    view = LogView(tmp_path, show=False, width=6)

    for number in range(3):
        view.line("worker", "lost")
        view.line("frontdoor", str(number))
    view.close()

    assert (tmp_path / "frontdoor.log").read_text() == "0\n1\n2\n"


def test_unwritable_log_is_reported_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "worker.log").symlink_to("/dev/full")
    view = LogView(tmp_path, show=False, width=6)

    for _ in range(3):
        view.line("worker", "lost")
    view.close()

    told = "worker.log cannot be written (No space left on device): its lines are lost, all else goes on"
    assert capfd.readouterr().err == f"pentimento │ {told}\n"


def test_notes_are_shown_and_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    view = LogView(tmp_path, show=False, width=10)

    view.note("all 5 processes serve")
    view.close()

    assert capfd.readouterr().out == "pentimento │ all 5 processes serve\n"
    assert (tmp_path / "supervisor.log").read_text().endswith(" all 5 processes serve\n")


def test_the_last_lines_are_kept_though_the_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "worker.log").symlink_to("/dev/full")
    view = LogView(tmp_path, show=False, width=6)

    view.line("worker", "weights are corrupt")
    view.close()

    assert view.tail("worker") == ["weights are corrupt"]


def test_without_streams_nothing_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    view = LogView(tmp_path, show=True, width=6)
    before = os.fstat(1).st_size

    view.line("worker", "hello")
    view.close()

    assert os.fstat(1).st_size == before
    assert (tmp_path / "worker.log").read_text() == "hello\n"
