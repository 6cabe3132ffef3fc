"""Test when a file counts as changed."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import Unauthenticated
from pentimento.domain.tenants import Role
from pentimento.rpc import token_entry, watched_file
from pentimento.rpc.channel import authorization_of
from pentimento.rpc.tokens import TokenFile
from pentimento.rpc.watched_file import KeptReading, WatchedFile, kept_grant_keys


def later(clock: SetClock, file: WatchedFile, seconds: float = 1.0) -> bool:
    clock.monotonic_s += seconds
    return file.changed()


def test_each_change_is_reported_once_with_check_per_second(tmp_path: Path) -> None:
    path, clock = tmp_path / "f", SetClock()
    path.write_text("a")
    file = WatchedFile(path, clock.monotonic)
    path.write_text("another size")

    assert [later(clock, file, seconds) for seconds in (0.0, 0.9, 0.1, 0.9, 0.1)] == [False, False, True, False, False]


def replaced(path: Path) -> None:
    """Replace the file with another of the same size and time."""
    fresh, times = path.with_name("fresh"), path.stat()
    fresh.write_text("b")
    os.utime(fresh, ns=(times.st_atime_ns, times.st_mtime_ns))
    fresh.replace(path)


def written_again(path: Path) -> None:
    os.utime(path, (1.0, 1.0))


def made_readable(path: Path) -> None:
    made_ns = path.stat().st_ctime_ns
    # The file system's clock may stand still for some milliseconds.
    while path.stat().st_ctime_ns == made_ns:
        path.chmod(0o644)


@pytest.mark.parametrize("change", [replaced, written_again, made_readable])
def test_changed_file_of_the_same_size_is_another(change: Callable[[Path], None], tmp_path: Path) -> None:
    path, clock = tmp_path / "f", SetClock()
    path.write_text("a")
    file = WatchedFile(path, clock.monotonic)

    change(path)

    assert later(clock, file)


def test_each_change_of_file_in_folder_is_change_of_folder(tmp_path: Path) -> None:
    clock, path = SetClock(), tmp_path / "f"
    (tmp_path / "deeper").mkdir()
    folder = WatchedFile(tmp_path, clock.monotonic)
    seen = [later(clock, folder)]
    for change in (lambda: path.write_text("a"), lambda: path.write_text("longer"), path.unlink, lambda: None):
        change()
        seen.append(later(clock, folder))

    assert seen == [False, True, True, True, False]


def test_to_go_and_to_come_back_are_changes(tmp_path: Path) -> None:
    path, clock = tmp_path / "f", SetClock()
    path.write_text("a")
    file = WatchedFile(path, clock.monotonic)
    path.unlink()
    gone = later(clock, file), later(clock, file)
    path.write_text("a")

    assert (gone, later(clock, file)) == ((True, False), True)


def of_service_token(path: Path) -> Callable[[], bool]:
    token = authorization_of(None, path)
    return lambda: token() == "Bearer second"


def of_grant_keys(path: Path) -> Callable[[], bool]:
    keys = kept_grant_keys(path)
    return lambda: keys()[0] == b"second" * 8


def of_callers(path: Path) -> Callable[[], bool]:
    tokens = TokenFile(path)

    def takes_second() -> bool:
        try:
            return tokens.identify("Bearer second") is not None
        except Unauthenticated:
            return False

    return takes_second


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (of_service_token, lambda word: word),
        (of_grant_keys, lambda word: word * 8),
        (of_callers, lambda word: token_entry(word, "tenant", frozenset({Role.USER}))),
    ],
    ids=["service token", "grant keys", "callers"],
)
def test_file_is_read_later_after_lack_of_descriptors(
    read: Callable[[Path], Callable[[], bool]],
    content: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watched_file, "CHECK_INTERVAL_S", 0.0)
    path = tmp_path / "f"
    path.write_text(content("first"))
    takes_second = read(path)
    path.write_text(content("second"))

    def refuse(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(Path, "read_text", refuse)
        exhausted.setattr(Path, "read_bytes", refuse)
        before = takes_second()

    assert (before, takes_second()) == (False, True)


def test_folder_is_read_later_after_lack_of_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_file, "CHECK_INTERVAL_S", 0.0)
    reading = KeptReading([tmp_path], lambda: [file.name for file in tmp_path.glob("*.json")], "not used")
    (tmp_path / "a.json").touch()

    def refuse(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(os, "scandir", refuse)
        before = reading.current()

    assert (before, reading.current()) == ([], ["a.json"])
