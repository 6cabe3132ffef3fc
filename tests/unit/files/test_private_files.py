"""Private files, and files of signing keys: the newest first, errors without keys."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.files.ed25519_keys import keep_signing_keys, new_signing_key, read_signing_keys
from pentimento.files.private_files import close_to_others, close_tree_to_others, make_private_directory


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o7777


def test_new_directory_and_its_parents_are_private(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "a" / "b")

    assert [mode(tmp_path / "a"), mode(tmp_path / "a" / "b")] == [0o700, 0o700]


def test_a_directory_that_was_open_is_closed_with_all_that_is_in_it(tmp_path: Path) -> None:
    root = tmp_path / "state"
    (root / "logs").mkdir(parents=True, mode=0o755)
    (root / "logs" / "frontdoor.log").write_text("x")
    (root / "run.sh").touch(mode=0o755)

    close_tree_to_others(root)

    assert [mode(root), mode(root / "logs")] == [0o700, 0o700]
    assert [mode(root / "logs" / "frontdoor.log"), mode(root / "run.sh")] == [0o600, 0o700]


def test_a_link_leads_to_nothing_that_is_changed(tmp_path: Path) -> None:
    (tmp_path / "mine").touch(mode=0o644)
    (tmp_path / "link").symlink_to(tmp_path / "mine")

    close_to_others(tmp_path / "link")

    assert mode(tmp_path / "mine") == 0o644


def test_a_place_for_everybody_stays_one(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)

    make_private_directory(tmp_path / "shared")

    assert mode(tmp_path / "shared") == 0o1777


def test_read_signing_keys_keeps_order(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# since March\n{'ab' * 32}\n\n  {'CD' * 32}\n")
    assert read_signing_keys(path) == (b"\xab" * 32, b"\xcd" * 32)

    path.write_text(f"{'ab' * 32}\n" * 8)
    assert len(read_signing_keys(path)) == 8

    # New keys differ.
    path.write_text("\n".join({new_signing_key() for _ in range(3)}))
    assert len(read_signing_keys(path)) == 3


def test_read_signing_keys_refuses_files_without_telling_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    for text in ("", "# none\n", "ab" * 31, "zz" * 32, "ab" * 33, f"{'ab' * 32}\n" * 9):
        path.write_text(text)
        with pytest.raises(InvalidArgument, match="keys") as caught:
            read_signing_keys(path)
        assert "abab" not in caught.value.message
        assert "zz" not in caught.value.message
    with pytest.raises(InvalidArgument, match="nowhere"):
        read_signing_keys(tmp_path / "nowhere")


def test_a_file_is_made_once_and_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keep_signing_keys(path)
    made = read_signing_keys(path)
    keep_signing_keys(path)

    assert read_signing_keys(path) == made and len(made) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="nowhere/keys: cannot be made"):
        keep_signing_keys(tmp_path / "nowhere" / "keys")


@pytest.mark.parametrize("step", ["write_text", "hardlink_to"])
def test_of_a_file_that_cannot_be_finished_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, step, full)

    with pytest.raises(InvalidArgument, match="keys: cannot be made"):
        keep_signing_keys(tmp_path / "keys")
    assert list(tmp_path.iterdir()) == []
