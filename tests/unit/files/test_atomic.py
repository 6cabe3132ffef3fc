"""Files that are replaced whole or not at all."""

import os
from pathlib import Path

import pytest

from pentimento.files.private_files import replace_file


@pytest.mark.parametrize("durable", [False, True])
def test_replace_file_replaces_content(tmp_path: Path, durable: bool) -> None:
    (tmp_path / "a").write_text("old")

    replace_file(tmp_path / "a", "new", mode=0o600, durable=durable)

    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert ((tmp_path / "a").read_text(), (tmp_path / "a").stat().st_mode & 0o777) == ("new", 0o600)


def test_replace_file_failing_keeps_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(tmp_path / "a", b"new", durable=True)

    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_replace_file_durable_flushes_file_then_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = list[tuple[bool, bool]]()

    def note(descriptor: int) -> None:
        flushed.append((Path(f"/proc/self/fd/{descriptor}").readlink().is_dir(), (tmp_path / "a").exists()))

    monkeypatch.setattr(os, "fsync", note)
    replace_file(tmp_path / "a", b"new", durable=True)

    assert flushed == [(False, False), (True, True)]
