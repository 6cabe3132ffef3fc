"""Socket files: permissions, leftovers, and files of others that must stay."""

import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pentimento.rpc.transport import claimed_socket, is_answered, private_directory
from pentimento.settings import SettingsError


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        yield Path(folder) / "below" / "s"


def bind(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with claimed_socket(path):
        bound.bind(str(path))
    bound.listen()
    return bound


def test_socket_is_private_and_replaces_unused_one_only(path: Path) -> None:
    with bind(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with pytest.raises(SettingsError, match="another process listens there"), claimed_socket(path):
            pass
    with bind(path):  # the one before has ended
        assert path.exists()
    path.unlink()
    path.write_text("precious")

    with pytest.raises(SettingsError, match="exists and is no socket"), claimed_socket(path):
        pass

    assert path.read_text() == "precious"


def test_directories_of_socket_are_made_and_umask_is_restored(path: Path) -> None:
    before = os.umask(0o022)
    deep = path.parent / "further" / "s"
    with bind(deep):
        made = deep.exists()
    after = os.umask(before)

    assert (made, after) == (True, 0o022)


def test_socket_with_full_backlog_is_in_use(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full backlog answers so; it is waited for no longer than a second."""
    bind(path).close()
    waits = []

    def refuse(asking: socket.socket, _address: str) -> None:
        waits.append(asking.gettimeout())
        raise BlockingIOError

    monkeypatch.setattr(socket.socket, "connect", refuse)

    assert is_answered(path)
    assert waits == [1.0]


def test_two_cannot_look_and_bind_at_once(path: Path) -> None:
    with claimed_socket(path):
        descriptor = os.open(path.parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
    with claimed_socket(path):
        pass


def test_a_directory_among_the_temporary_ones_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    made = private_directory("some")
    again = private_directory("some")

    assert made == again == tmp_path / f"some-{os.getuid()}"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


@pytest.mark.parametrize("how", ["open to others", "a link", "a file"])
def test_directory_of_other_user_is_rejected(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory, other = tmp_path / f"some-{os.getuid()}", tmp_path / "other"
    other.mkdir(mode=0o700)
    if how == "open to others":
        directory.mkdir()
        directory.chmod(0o755)
    elif how == "a link":
        directory.symlink_to(other)
    else:
        directory.touch(mode=0o600)

    with pytest.raises(SettingsError, match="must be a directory of this user alone"):
        private_directory("some")
