"""Socket files: permissions, leftovers, and what is not ours to remove."""

import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pentimento.rpc.unix_sockets import claimed_socket
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


def test_socket_and_directory_are_for_their_owner_alone(path: Path) -> None:
    with bind(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_socket_that_nobody_listens_on_is_replaced(path: Path) -> None:
    bind(path).close()

    with bind(path):
        assert path.exists()


def test_a_socket_that_somebody_listens_on_is_left_alone(path: Path) -> None:
    with bind(path), pytest.raises(SettingsError, match="another process listens there"), claimed_socket(path):
        pass


def test_a_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("precious")

    with pytest.raises(SettingsError, match="exists and is no socket"), claimed_socket(path):
        pass

    assert path.read_text() == "precious"
