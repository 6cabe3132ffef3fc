"""Receipts: sealed, checked, and every change of one named."""

import json

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pentimento.domain.errors import InvalidArgument
from pentimento.files.receipts import open_seal, seal
from tests.support.refusals import wrong_refusals

DOCUMENT = {"tenant": "Ü acme", "deleted": [{"kind": "requests", "count": 2}]}
# The key pair of RFC 8032, 7.1, test 1.
PRIVATE = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
KEY = Ed25519PrivateKey.from_private_bytes(PRIVATE)


def test_open_seal_returns_signed_document() -> None:
    for public_key in ("", PUBLIC, PUBLIC.upper()):
        assert open_seal(seal(DOCUMENT, KEY), public_key) == DOCUMENT


def test_seal_without_key_has_digest_only() -> None:
    sealed = json.loads(seal({"b": 1, "a": "é"}, None))

    assert sealed == {
        "receipt": {"b": 1, "a": "é"},
        "digest": "sha256:aa58fba8483623bed37c1b02edfccbdd9a53123837c20bfa4cb4049993a2872e",
    }
    assert open_seal(json.dumps(sealed)) == {"b": 1, "a": "é"}


FAULTS: list[tuple[dict[str, object], str, str]] = [
    ({"receipt": {**DOCUMENT, "tenant": "other"}}, "", "digest: must be that of the receipt"),
    ({"signature": None}, PUBLIC, "signature: must be there: the receipt is not signed"),
    ({"signature": {"public_key": PUBLIC, "value": "00" * 64}}, "", "signature: must be that of the receipt"),
    ({"signature": {"public_key": PUBLIC, "value": "no"}}, "", "signature: must be that of the receipt"),
    ({"signature": "no"}, "", "signature: must be that of the receipt"),
    ({}, "ab" * 32, f"signature.public_key: must be {'ab' * 32}, is {PUBLIC}"),
    ({"receipt": {"tenant": "\ud800"}}, "", "receipt: must be text in Unicode"),
    ({"receipt": 3}, "", "receipt: must be a JSON document"),
]


def test_open_seal_names_the_fault() -> None:
    sealed = json.loads(seal(DOCUMENT, KEY))
    rows = [
        *((json.dumps(sealed | changes), public_key, words) for changes, public_key, words in FAULTS),
        *((text, "", "receipt: must be a JSON document") for text in ("", "[]", "{}", "[" * 100_000)),
    ]

    assert wrong_refusals(InvalidArgument, open_seal, rows) == []
