"""When a file counts as changed."""

import os
from pathlib import Path

from pentimento.rpc.watched_file import WatchedFile
from pentimento.testing.clocks import SetClock


def later(clock: SetClock, file: WatchedFile, seconds: float = 1.0) -> bool:
    clock.monotonic_s += seconds
    return file.changed()


def test_each_change_is_told_once_and_looked_for_once_a_second(tmp_path: Path) -> None:
    path, clock = tmp_path / "f", SetClock()
    path.write_text("a")
    file = WatchedFile(path, clock.monotonic)
    path.write_text("another size")

    assert [later(clock, file, seconds) for seconds in (0.0, 0.9, 0.1, 0.9, 0.1)] == [False, False, True, False, False]


def test_a_replaced_file_of_the_same_size_and_time_is_another(tmp_path: Path) -> None:
    path, clock = tmp_path / "f", SetClock()
    path.write_text("a")
    file = WatchedFile(path, clock.monotonic)
    fresh = tmp_path / "fresh"
    fresh.write_text("b")
    times = path.stat()
    os.utime(fresh, ns=(times.st_atime_ns, times.st_mtime_ns))
    fresh.replace(path)

    assert later(clock, file)


def test_a_file_that_was_written_again_at_the_same_size_is_another(tmp_path: Path) -> None:
    path, clock = tmp_path / "f", SetClock()
    path.write_text("a")
    file = WatchedFile(path, clock.monotonic)
    os.utime(path, (1.0, 1.0))

    assert later(clock, file)


def test_a_file_that_others_may_read_from_now_on_is_another(tmp_path: Path) -> None:
    path, clock = tmp_path / "f", SetClock()
    path.write_text("a")
    made_ns = path.stat().st_ctime_ns
    file = WatchedFile(path, clock.monotonic)
    # The file system's clock may stand still for some milliseconds.
    while path.stat().st_ctime_ns == made_ns:
        path.chmod(0o644)

    assert later(clock, file)


def test_to_go_and_to_come_back_are_changes(tmp_path: Path) -> None:
    path, clock = tmp_path / "f", SetClock()
    path.write_text("a")
    file = WatchedFile(path, clock.monotonic)
    path.unlink()
    gone = later(clock, file), later(clock, file)
    path.write_text("a")

    assert (gone, later(clock, file)) == ((True, False), True)
