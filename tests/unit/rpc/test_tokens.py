"""Token files: what they may hold, and when they are read again."""

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import Unauthenticated
from pentimento.domain.identity import OPEN_CALLER, Caller, Role
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


def test_a_changed_file_is_read_again_within_a_second(tmp_path: Path) -> None:
    first, second, clock = new_token(), new_token(), Monotonic()
    file = tmp_path / "tokens.toml"
    file.write_text(token_entry(first, "acme", frozenset({Role.USER})))
    tokens = TokenFile(file, clock)
    file.write_text(token_entry(second, "beta", frozenset({Role.ADMIN})) + "# another size\n")

    clock.now_s = 0.9
    assert tokens.identify(f"Bearer {first}") == Caller("acme", frozenset({Role.USER}))
    clock.now_s = 1.0
    assert tokens.identify(f"Bearer {second}") == Caller("beta", frozenset({Role.ADMIN}))
    with pytest.raises(Unauthenticated):
        tokens.identify(f"Bearer {first}")


def test_a_removed_file_keeps_the_tokens(tmp_path: Path) -> None:
    token, clock = new_token(), Monotonic()
    file = tmp_path / "tokens.toml"
    file.write_text(token_entry(token, "acme", frozenset({Role.USER})))
    tokens = TokenFile(file, clock)
    file.unlink()
    clock.now_s = 5.0

    assert tokens.identify(f"Bearer {token}") == Caller("acme", frozenset({Role.USER}))


def known(tokens: TokenFile, token: str) -> bool:
    try:
        return tokens.identify(f"Bearer {token}") is not None
    except Unauthenticated:
        return False


def seen_at(tokens: TokenFile, clock: Monotonic, token: str, *times_s: float) -> list[bool]:
    """Whether the token is known at each of these times."""
    found = []
    for clock.now_s in times_s:
        found.append(known(tokens, token))
    return found


def test_a_file_that_is_written_in_place_refuses_nobody_while_it_is_empty(tmp_path: Path) -> None:
    first, second, clock = new_token(), new_token(), Monotonic()
    file = tmp_path / "tokens.toml"
    file.write_text(token_entry(first, "acme", frozenset({Role.USER})))
    tokens = TokenFile(file, clock)
    file.write_text("\n")
    empty = seen_at(tokens, clock, first, 1.0, 5.9)
    file.write_text(token_entry(second, "acme", frozenset({Role.USER})))

    assert empty == [True, True]
    assert seen_at(tokens, clock, second, 6.9, 20.0) == [True, True]
    assert not known(tokens, first)


def test_a_file_that_stays_empty_lets_nobody_in_after_five_seconds(tmp_path: Path) -> None:
    token, clock = new_token(), Monotonic()
    file = tmp_path / "tokens.toml"
    file.write_text(token_entry(token, "acme", frozenset({Role.USER})))
    tokens = TokenFile(file, clock)
    file.write_text("")
    before = seen_at(tokens, clock, token, 1.0)
    # Whoever goes on touching it, or asks for it to be read, does not put that off.
    for clock.now_s in (2.0, 4.0, 5.0):
        os.utime(file)
        tokens.reload()

    assert (before, seen_at(tokens, clock, token, 5.9, 6.0, 7.0)) == ([True], [True, False, False])


def test_a_file_that_says_that_it_has_no_tokens_lets_nobody_in_at_once(tmp_path: Path) -> None:
    token, clock = new_token(), Monotonic()
    file = tmp_path / "tokens.toml"
    file.write_text(token_entry(token, "acme", frozenset({Role.USER})))
    tokens = TokenFile(file, clock)
    file.write_text("# none\n")

    assert seen_at(tokens, clock, token, 1.0) == [False]


def test_an_entry_is_written_as_the_file_wants_it() -> None:
    entry_lines = token_entry("hello", "acme", frozenset({Role.USER, Role.ADMIN})).splitlines()

    assert entry_lines == [
        "[[token]]",
        f'sha256 = "{hash_token("hello")}"',
        'tenant = "acme"',
        'roles = ["admin", "user"]',
    ]
