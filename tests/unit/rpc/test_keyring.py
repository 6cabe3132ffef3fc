"""Accept keys of a key ring in addition to the tokens of a file."""

from pathlib import Path

import pytest

from pentimento.domain.errors import Unauthenticated
from pentimento.domain.tenants import Caller, HashedKey, Role, TenantKey
from pentimento.rpc.tokens import KeyRing, TokenFile, blinded, hash_token, token_entry

USER = frozenset({Role.USER})


def key(
    secret: str, tenant: str = "acme", expires_at: float | None = None, revoked_at: float | None = None
) -> HashedKey:
    return HashedKey(TenantKey(f"id of {secret}", tenant, 0.0, expires_at, revoked_at), hash_token(secret))


def found(ring: KeyRing, secret: str) -> Caller | None:
    return ring.find(blinded(hash_token(secret)))


def test_a_key_is_a_user_of_its_tenant_until_others_take_its_place() -> None:
    ring = KeyRing(lambda: 10.0)
    ring.replace([key("one"), key("two", "other")])
    assert [found(ring, name) for name in ("one", "two", "three")] == [
        Caller("acme", USER),
        Caller("other", USER),
        None,
    ]

    ring.replace([key("three")])

    assert [found(ring, name) for name in ("one", "two", "three")] == [None, None, Caller("acme", USER)]
    assert len(ring) == 1


@pytest.mark.parametrize(
    ("one", "is_taken"),
    [
        (key("k", expires_at=10.5), True),
        (key("k", expires_at=10.0), False),
        (key("k", revoked_at=9.0), False),
    ],
)
def test_a_key_ends_at_its_time(one: HashedKey, is_taken: bool) -> None:
    ring = KeyRing(lambda: 10.0)
    ring.replace([one])

    assert (found(ring, "k") is not None) == is_taken


def test_tokens_of_file_take_precedence_over_keys(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(token_entry("of file", "static", frozenset({Role.ADMIN})))
    ring = KeyRing(lambda: 10.0)
    ring.replace([key("of file"), key("of ledger")])
    tokens = TokenFile(file, keys=ring)

    callers = [tokens.identify(f"Bearer {token}") for token in ("of file", "of ledger")]

    assert callers == [Caller("static", frozenset({Role.ADMIN})), Caller("acme", USER)]
    with pytest.raises(Unauthenticated):
        tokens.identify("Bearer unknown")
    with pytest.raises(Unauthenticated):
        TokenFile(file).identify("Bearer of ledger")
