"""Token files: their content, and when they are read again."""

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import Unauthenticated
from pentimento.domain.tenants import OPEN_CALLER, Caller, Role
from pentimento.rpc.tokens import OpenDoor, TokenFile, blinded, hash_token, new_token, parse_tokens, token_entry
from pentimento.settings import SettingsError

DIGEST = "a" * 64


class Monotonic:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def entry(sha256: str = f'"{DIGEST}"', tenant: str = '"acme"', roles: str = '["user"]', more: str = "") -> str:
    return f"[[token]]\nsha256 = {sha256}\ntenant = {tenant}\nroles = {roles}\n{more}"


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1).filter(lambda name: not name.startswith("*")))
def test_an_entry_names_any_tenant_as_it_is(tenant: str) -> None:
    (caller,) = parse_tokens(token_entry("hello", tenant, frozenset({Role.USER})), "tokens.toml").values()

    assert caller == Caller(tenant, frozenset({Role.USER}))


@given(st.sets(st.sampled_from([Role.USER, Role.SERVICE, Role.ADMIN, Role.TENANT_ADMIN]), min_size=1))
def test_an_entry_made_for_a_token_names_its_caller(roles: set[Role]) -> None:
    token = new_token()

    callers = parse_tokens(token_entry(token, "acme", frozenset(roles)), "tokens.toml")

    assert callers == {hash_token(token): Caller("acme", frozenset(roles))}


SHA256 = "sha256 must be 64 lower-case hex digits"
MALFORMED = (
    (entry(tenant='"*shared*"'), "tenant must not begin with '*'"),
    (entry(sha256='"short"'), SHA256),
    (entry(sha256=f'"{DIGEST.upper()}"'), SHA256),
    (entry(sha256="7"), SHA256),
    (token_entry("", "acme", frozenset({Role.USER})), "sha256 must be that of a token, not of an empty text"),
    (entry(tenant='""'), "tenant must be"),
    (entry(tenant="7"), "tenant must be"),
    (entry(roles="[]"), "roles must be a list of admin, service, tenant-admin, user"),
    *[(entry(roles=roles), "roles must be a list") for roles in ('"user"', '["root"]', '["anyone"]', "[[1]]")],
    (entry(more='note = "x"\n'), "exactly the keys roles, sha256, tenant"),
    (entry() + entry(), "repeats the sha256"),
    ('[token]\nsha256 = "x"\n', "must hold [[token]] entries and nothing else"),
    ("token = [1]\n", "must be a table"),
    ('tokens = "x"\n', "must hold [[token]] entries and nothing else"),
    ("[[token\n", "not valid TOML"),
    ("[[token]]\n", "[[token]] number 1 "),
    (entry() + "[[token]]\n", "[[token]] number 2 "),
    (entry() * 2, "[[token]] number 2 "),
)


def test_parse_tokens_malformed_file_is_refused_in_one_line() -> None:
    for text, words in MALFORMED:
        with pytest.raises(SettingsError) as caught:
            parse_tokens(text, "tokens.toml")

        error = str(caught.value)
        assert error.startswith("tokens.toml: ") and "\n" not in error
        assert error.startswith(f"tokens.toml: {words}") if "number" in words else words in error, text


def test_identify_names_reason_where_token_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text("")
    tokens = TokenFile(tmp_path / "tokens.toml")

    for value, reason in (
        *[(value, "MALFORMED_TOKEN") for value in ("", "Bearer", "bearer x", "Basic x", b"Bearer x")],
        ("Bearer x", "UNKNOWN_TOKEN"),
    ):
        with pytest.raises(Unauthenticated) as refused:
            tokens.identify(value)
        assert refused.value.reason == reason, value
    assert tokens.identify(None) is None
    assert OpenDoor().identify(None) == OPEN_CALLER


def test_tokens_are_random_and_looked_up_by_blinded_digest() -> None:
    tokens = {new_token() for _ in range(5)}
    digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"

    assert [len(token) for token in tokens] == [43] * 5
    assert hash_token("hello") == hash_token(" hello\n") == digest
    # Without the key of this process a digest is not found by its own hash.
    assert blinded(DIGEST) == blinded(DIGEST)
    assert blinded(DIGEST) not in (blinded("b" * 64), hashlib.blake2b(DIGEST.encode(), digest_size=32).digest())


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        TokenFile(tmp_path / "missing.toml")


class Kept:
    """A token file that a test writes, read at times in seconds after its first reading."""

    def __init__(self, folder: Path, text: str) -> None:
        self.file, self._clock = folder / "tokens.toml", Monotonic()
        self.file.write_text(text)
        self.tokens = TokenFile(self.file, self._clock)

    def seen(self, token: str, *times_s: float) -> list[str]:
        """Return the tenant of a token at each of the times; "" for an unknown one."""
        found = []
        for self._clock.now_s in times_s:
            try:
                caller = self.tokens.identify(f"Bearer {token}")
            except Unauthenticated:
                caller = None
            found.append(caller.tenant if caller else "")
        return found


FIRST, SECOND = new_token(), new_token()
OF_FIRST, OF_SECOND = (
    token_entry(token, tenant, frozenset({Role.USER})) for token, tenant in ((FIRST, "acme"), (SECOND, "beta"))
)


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        # It is looked at once a second.
        pytest.param(OF_SECOND + "# another size\n", ["acme", "", ""], ["", "beta", "beta"], id="changed"),
        pytest.param(None, ["acme", "acme", "acme"], ["", "", ""], id="removed"),
        pytest.param("# none\n", ["acme", "", ""], ["", "", ""], id="says that it has none"),
        pytest.param("[[token", ["acme", "acme", "acme"], ["", "", ""], id="malformed"),
    ],
)
def test_a_changed_file_is_read_again_within_a_second(
    tmp_path: Path, text: str | None, first: list[str], second: list[str]
) -> None:
    kept, other = (Kept(tmp_path, OF_FIRST) for _ in range(2))
    if text is None:
        kept.file.unlink()
    else:
        kept.file.write_text(text)

    assert (kept.seen(FIRST, 0.9, 1.0, 20.0), other.seen(SECOND, 0.9, 1.0, 20.0)) == (first, second)


def test_file_written_in_place_rejects_no_caller_while_empty(tmp_path: Path) -> None:
    kept = Kept(tmp_path, OF_FIRST)
    kept.file.write_text("\n")
    empty = kept.seen(FIRST, 1.0, 5.9)
    kept.file.write_text(OF_SECOND)

    assert empty == ["acme", "acme"]
    assert (kept.seen(SECOND, 6.9, 20.0), kept.seen(FIRST, 20.0)) == (["beta", "beta"], [""])


def test_file_that_stays_empty_rejects_callers_after_five_seconds(tmp_path: Path) -> None:
    kept = Kept(tmp_path, OF_FIRST)
    kept.file.write_text("")
    before = kept.seen(FIRST, 1.0)
    # Further changes of its time, or requests to read it, do not delay that.
    for now_s in (2.0, 4.0, 5.0):
        os.utime(kept.file)
        kept.seen("none", now_s)
        kept.tokens.reload()

    assert (before, kept.seen(FIRST, 5.9, 6.0, 7.0)) == (["acme"], ["acme", "", ""])
