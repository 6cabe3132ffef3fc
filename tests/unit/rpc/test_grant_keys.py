"""The file of the keys that grants are signed with."""

from pathlib import Path

import pytest

from pentimento.rpc import watched_file
from pentimento.rpc.watched_file import kept_grant_keys
from pentimento.settings import SettingsError

FIRST, SECOND = "a" * 64, "b" * 64


def test_the_first_line_signs_and_all_are_believed(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{FIRST}\n\n{SECOND}\n")

    keys = kept_grant_keys(tmp_path / "key")

    assert keys() == (FIRST.encode(), SECOND.encode())


def test_file_with_missing_or_short_key_is_rejected_without_quoting_it(tmp_path: Path) -> None:
    for text in ("", "\n", "short\n", f"{FIRST}\nshort\n"):
        (tmp_path / "key").write_text(text)

        with pytest.raises(SettingsError) as refused:
            kept_grant_keys(tmp_path / "key")

        assert "at least 32 characters" in str(refused.value)
        assert "short" not in str(refused.value)


def test_a_changed_file_is_taken_over_and_a_broken_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_file, "CHECK_INTERVAL_S", 0.0)
    (tmp_path / "key").write_text(FIRST)
    keys = kept_grant_keys(tmp_path / "key")

    (tmp_path / "key").write_text(f"{SECOND}\n{FIRST}\n")
    assert keys()[0] == SECOND.encode()
    (tmp_path / "key").write_text("")
    assert keys() == (SECOND.encode(), FIRST.encode())
