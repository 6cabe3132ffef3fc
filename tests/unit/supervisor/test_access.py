"""The token file of a suite, as its operator wrote it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from pentimento.domain.tenants import Role
from pentimento.files.ed25519_keys import read_signing_keys
from pentimento.rpc.tokens import token_entry
from pentimento.settings import SettingsError
from pentimento.supervisor import access
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


def test_token_of_suite_is_added_to_tokens_of_operator(tmp_path: Path) -> None:
    given = tmp_path / "given.toml"
    given.write_text("")
    tokens = SuiteTokens(given, tmp_path)
    tokens.write()

    assert tokens.service_token.stat().st_mode & 0o777 == 0o600
    assert tokens.table.read_text().count("[[token]]") == 1


async def look_while(tokens: SuiteTokens, monkeypatch: pytest.MonkeyPatch, *between: Callable[[], object]) -> list[str]:
    """Return the complaints of looks between the given acts, and one after the last."""
    rest, complaints, sleep = [*between, lambda: None], list[str](), asyncio.sleep

    async def next_look(_: float) -> None:
        if not rest:
            raise asyncio.CancelledError
        rest.pop(0)()
        await sleep(0)

    monkeypatch.setattr(access.asyncio, "sleep", next_look)
    with pytest.raises(asyncio.CancelledError):
        await tokens.follow(complaints.append)
    return complaints


ENTRY = token_entry("secret", "acme", frozenset({Role.USER}))


async def test_change_before_first_look_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "given.toml"
    given.write_text("")
    tokens = SuiteTokens(given, tmp_path)
    tokens.write()
    given.write_text(ENTRY)

    complaints = await look_while(tokens, monkeypatch)

    assert complaints == [] and ENTRY in tokens.table.read_text()


async def test_a_file_that_is_away_is_complained_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "given.toml"
    given.write_text("")
    tokens = SuiteTokens(given, tmp_path)
    tokens.write()

    wait = (lambda: None,) * 3
    complaints = await look_while(tokens, monkeypatch, given.unlink, *wait, lambda: given.write_text(ENTRY))

    assert len(complaints) == 1 and "No such file" in complaints[0]
    assert ENTRY in tokens.table.read_text()


def test_a_signing_key_is_made_once_and_is_this_users_alone(tmp_path: Path) -> None:
    path = keep_signing_key(tmp_path)
    keys = read_signing_keys(path)

    assert keep_signing_key(tmp_path) == path
    assert read_signing_keys(path) == keys
    assert path.stat().st_mode & 0o077 == 0
