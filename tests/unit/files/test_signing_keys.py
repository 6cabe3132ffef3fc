"""Files of keys: the newest first, and what is wrong with one is told without it."""

import errno
import os
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.files.signing_keys import keep_signing_keys, new_signing_key, read_signing_keys


def test_keys_are_read_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# since March\n{'ab' * 32}\n\n  {'CD' * 32}\n")

    assert read_signing_keys(path) == (b"\xab" * 32, b"\xcd" * 32)


def test_a_new_key_is_one_and_never_the_same(tmp_path: Path) -> None:
    lines = {new_signing_key() for _ in range(3)}
    (tmp_path / "keys").write_text("\n".join(lines))

    assert len(read_signing_keys(tmp_path / "keys")) == 3


def test_a_file_may_hold_as_many_keys_as_the_bound_says(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{'ab' * 32}\n" * 8)

    assert len(read_signing_keys(tmp_path / "keys")) == 8


@pytest.mark.parametrize("text", ["", "# none\n", "ab" * 31, "zz" * 32, "ab" * 33, f"{'ab' * 32}\n" * 9])
def test_a_file_without_keys_is_refused_and_no_key_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)

    with pytest.raises(InvalidArgument, match="keys") as caught:
        read_signing_keys(path)
    assert "abab" not in caught.value.message
    assert "zz" not in caught.value.message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
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
