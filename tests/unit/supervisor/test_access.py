"""The token file of a suite, as its operator wrote it."""

from pathlib import Path

import pytest

from pentimento.files.signing_keys import read_signing_keys
from pentimento.settings import SettingsError
from pentimento.supervisor.access import SuiteTokens, keep_signing_key


@pytest.mark.parametrize("text", [b"not = [toml", b"\xff\xfe binary", None])
def test_a_file_of_tokens_that_is_none_is_named_and_nothing_is_written(tmp_path: Path, text: bytes | None) -> None:
    given = tmp_path / "given.toml"
    if text is not None:
        given.write_bytes(text)
    tokens = SuiteTokens(given, tmp_path)

    with pytest.raises(SettingsError, match=str(given)):
        tokens.write()
    assert not tokens.table.exists()


def test_the_suites_own_token_stands_beside_those_of_its_operator(tmp_path: Path) -> None:
    given = tmp_path / "given.toml"
    given.write_text("")
    tokens = SuiteTokens(given, tmp_path)
    tokens.write()

    assert tokens.service_token.stat().st_mode & 0o777 == 0o600
    assert tokens.table.read_text().count("[[token]]") == 1


def test_a_signing_key_is_made_once_and_is_this_users_alone(tmp_path: Path) -> None:
    path = keep_signing_key(tmp_path)
    keys = read_signing_keys(path)

    assert keep_signing_key(tmp_path) == path
    assert read_signing_keys(path) == keys
    assert path.stat().st_mode & 0o077 == 0
