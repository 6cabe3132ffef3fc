"""Signatures of registry entries: by keys that openssl makes, against every kind of change."""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.api.models.v1 import model_repository_service_pb2 as pb
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.models import ModelVariant
from pentimento.files.ed25519_keys import key_id_of, read_private_key, read_public_keys
from pentimento.files.json_values import from_json, to_json
from pentimento.files.signed_entries import (
    TrustedEntries,
    entry_of_variant,
    signed_variant,
)
from pentimento.wire.codec import decode, nested
from tests.support.refusals import wrong_refusals
from tests.unit.controller.registered import variant
from tests.unit.files.signing import ENTRY, Keys, openssl

NAME = ENTRY["name"]


def rejection(trusted: TrustedEntries, entry: Mapping[str, Any], name: str = NAME) -> FailedPrecondition:
    with pytest.raises(FailedPrecondition) as caught:
        trusted.check(name, entry)
    assert caught.value.metadata["component"] == name
    assert caught.value.message.startswith(f"{name}: ")
    return caught.value


def test_openssl_verifies_signature(keys: Keys, tmp_path: Path) -> None:
    signed = keys.signed("first")
    (tmp_path / "value").write_bytes(base64.b64decode(signed["signature"]["value"]))
    text = (
        f'{{"base":{{"digest":"sha256:{"b" * 64}","name":"tiny-heavy"}},"digest":"sha256:{"a" * 64}",'
        '"family":"sd","kind":"controlnet","licence":"Apache-2.0","name":"tiny-controlnet-edges",'
        '"note":"f\\u00fcr Kanten","path":"tiny-controlnet-edges"}'
    )
    (tmp_path / "message").write_text(f"pentimento registry entry 1 1000\n{text}")
    files = ("-inkey", tmp_path / "first.pub", "-sigfile", tmp_path / "value", "-in", tmp_path / "message")

    said = openssl("pkeyutl", "-verify", "-pubin", "-rawin", *files)

    assert b"Verified Successfully" in said
    assert signed["signature"]["key_id"] == keys.id_of("first")
    assert {name: value for name, value in signed.items() if name != "signature"} == ENTRY


def test_signed_entry_is_accepted_in_any_order_of_its_fields(keys: Keys) -> None:
    signed = keys.signed("first")

    TrustedEntries(keys.public("first")).check(NAME, dict(reversed(signed.items())))


def changed(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda entry: {**entry, **fields}


def with_value(entry: dict[str, Any], value: str) -> dict[str, Any]:
    return {**entry, "signature": {**entry["signature"], "value": value}}


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    **{name: changed(**{name: "other"}) for name in ENTRY if name not in ("name", "digest")},
    "digest": changed(digest="sha256:" + "c" * 64),
    "one field more": changed(more=1),
    "one field less": lambda entry: {name: value for name, value in entry.items() if name != "licence"},
    "later signature": lambda entry: {**entry, "signature": {**entry["signature"], "signed_at_ms": 1001}},
    "first bit": lambda entry: with_value(entry, base64.b64encode(flipped(entry)).decode()),
    "short signature": lambda entry: with_value(entry, "AAAA"),
    "no base64": lambda entry: with_value(entry, "ä!"),
    "no signature bytes": lambda entry: with_value(entry, ""),
}


def flipped(entry: dict[str, Any]) -> bytes:
    value = base64.b64decode(entry["signature"]["value"])
    return bytes([value[0] ^ 1]) + value[1:]


def test_changed_entry_is_rejected(keys: Keys) -> None:
    trusted, signed = TrustedEntries(keys.public("first")), keys.signed("first")
    for what, change in CHANGES.items():
        found = rejection(trusted, change(signed))

        assert (found.reason, found.metadata["key_id"]) == ("BAD_SIGNATURE", keys.id_of("first")), what


def test_entry_of_another_component_is_rejected(keys: Keys) -> None:
    assert rejection(TrustedEntries(keys.public("first")), keys.signed("first"), "other").reason == "BAD_SIGNATURE"


def test_signed_entry_without_a_digest_is_rejected(keys: Keys) -> None:
    entry = keys.signed("first", {"name": NAME, "path": NAME})

    assert rejection(TrustedEntries(keys.public("first")), entry).reason == "BAD_SIGNATURE"


def test_unsigned_entry_is_rejected(keys: Keys) -> None:
    trusted = TrustedEntries(keys.public("first"))
    incomplete = ("text", {}, {"key_id": "a", "value": "b"}, {"key_id": 1, "signed_at_ms": 1, "value": ""})
    for entry in (ENTRY, *({**ENTRY, "signature": signature} for signature in incomplete)):
        found = rejection(trusted, entry)

        assert found.reason == "UNSIGNED_ENTRY", entry
        assert keys.id_of("first") in found.message


def test_entry_of_another_key_is_rejected_by_its_id(keys: Keys) -> None:
    entry = keys.signed("second")

    found = rejection(TrustedEntries(keys.public("first")), entry)

    assert (found.reason, found.metadata["key_id"]) == ("UNKNOWN_SIGNING_KEY", keys.id_of("second"))
    assert keys.id_of("second") in found.message and keys.id_of("first") in found.message


def test_entry_that_names_a_trusted_key_and_is_signed_by_another_is_rejected(keys: Keys) -> None:
    trusted, entry = TrustedEntries(keys.public("first")), keys.signed("second")
    entry["signature"]["key_id"] = keys.id_of("first")

    assert rejection(trusted, entry).reason == "BAD_SIGNATURE"


def test_keys_are_rotated_without_a_restart(keys: Keys) -> None:
    trusted = TrustedEntries(keys.public("first"))
    old, new = keys.signed("first"), keys.signed("second", now_ms=2000)

    assert rejection(trusted, new).reason == "UNKNOWN_SIGNING_KEY"
    keys.public("first", "second")
    trusted.check(NAME, old)
    trusted.check(NAME, new)
    keys.public("second")
    trusted.check(NAME, new)

    assert rejection(trusted, old).reason == "UNKNOWN_SIGNING_KEY"


def test_earlier_entry_with_another_digest_is_rejected_once_a_later_one_was_seen(keys: Keys) -> None:
    other = {**ENTRY, "digest": "sha256:" + "c" * 64}
    earlier, later = keys.signed("first", other, now_ms=1000), keys.signed("first", now_ms=2000)
    public, seen = keys.public("first"), keys.folder / "components"

    TrustedEntries(public, seen).check(NAME, earlier)
    TrustedEntries(public, seen).check(NAME, later)
    found = rejection(TrustedEntries(public, seen), earlier)
    # Signed again with the same digest, and a component of another kind with that name.
    TrustedEntries(public, seen).check(NAME, keys.signed("first", now_ms=1500))
    TrustedEntries(public, seen).check(NAME, keys.signed("first", {**other, "kind": "lora"}, now_ms=1000))
    # A rollback is a new signature.
    TrustedEntries(public, seen).check(NAME, keys.signed("first", other, now_ms=3000))

    assert found.reason == "STALE_ENTRY"
    TrustedEntries(public).check(NAME, earlier)


def test_damaged_memory_of_entries_is_begun_again(keys: Keys) -> None:
    public, seen = keys.public("first"), keys.folder / "components"
    TrustedEntries(public, seen).check(NAME, keys.signed("first", now_ms=2000))
    (file,) = (seen / "entries").iterdir()
    for text in ("", "{}", "[]", '{"digest": 1, "signed_at_ms": "x"}'):
        file.write_text(text)
        TrustedEntries(public, seen).check(NAME, keys.signed("first", now_ms=1000))

    assert json.loads(file.read_text()) == {"digest": ENTRY["digest"], "signed_at_ms": 1000}


def not_ed25519(keys: Keys, curve: str = "P-256") -> bytes:
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", f"ec_paramgen_curve:{curve}", "-out", keys.folder / "ec.key")
    return openssl("pkey", "-in", keys.folder / "ec.key", "-pubout")


def locked(keys: Keys) -> bytes:
    return openssl("pkey", "-in", keys.private("first"), "-aes256", "-passout", "pass:word")


NO_PRIVATE_KEY = "must be a private key as PEM without a password"
INVALID_PUBLIC: list[tuple[Callable[[Keys], bytes], str]] = [
    (lambda keys: b"", "must hold at least one PEM block PUBLIC KEY"),
    (lambda keys: keys.private("first").read_bytes(), "must hold at least one PEM block PUBLIC KEY"),
    (lambda keys: b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "must hold PEM public keys"),
    (not_ed25519, "must hold ed25519 keys only"),
    (lambda keys: not_ed25519(keys, "SM2"), "must hold PEM public keys: Curve .* not supported"),
    (lambda keys: keys.public("first").read_bytes() + not_ed25519(keys), "must hold ed25519 keys only"),
]
INVALID_PRIVATE: list[tuple[Callable[[Keys], bytes], str]] = [
    (lambda keys: b"", NO_PRIVATE_KEY),
    (lambda keys: keys.public("first").read_bytes(), NO_PRIVATE_KEY),
    (locked, NO_PRIVATE_KEY),
    (lambda keys: openssl("genpkey", "-algorithm", "X25519"), "must be an ed25519 key, is X25519PrivateKey"),
    (lambda keys: openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:SM2"), NO_PRIVATE_KEY),
]


def test_invalid_keys_are_rejected(keys: Keys) -> None:
    file = keys.folder / "wrong.pem"

    def read(reader: Callable[[Path], object], data: Callable[[Keys], bytes]) -> None:
        file.write_bytes(data(keys))
        reader(file)

    private = partial(read_private_key, setting="signing_key")
    rows = [
        *((TrustedEntries, data, rf"registry_public_keys: .*wrong\.pem: {limit}") for data, limit in INVALID_PUBLIC),
        *((private, data, rf"signing_key: .*wrong\.pem: {limit}") for data, limit in INVALID_PRIVATE),
    ]

    assert wrong_refusals(InvalidArgument, read, rows) == []


def test_entry_is_rejected_while_the_keys_cannot_be_read(keys: Keys) -> None:
    trusted = TrustedEntries(keys.public("first"))
    keys.public("first").write_bytes(b"")

    found = rejection(trusted, keys.signed("first"))

    assert found.reason == "UNKNOWN_SIGNING_KEY"
    assert "must hold at least one PEM block PUBLIC KEY" in found.message


def test_missing_keys_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"signing_key: .*No such file"):
        read_private_key(tmp_path / "absent", "signing_key")
    with pytest.raises(InvalidArgument, match=r"registry_public_keys: .*No such file"):
        read_public_keys(tmp_path / "absent")


FIELDS = {
    "digest": "sha256:" + "c" * 64,
    "family": "other",
    "licence": "other",
    "source": "s3://bucket/other",
    "default_steps": 1,
    "default_guidance_scale": 1.5,
    "costs": variant("mine", ("gpu", 2.0)).costs,
    "files": (replace(variant("mine").files[0], blocks=("e" * 64,)), variant("mine").files[1]),
}


def test_registration_with_a_changed_field_is_rejected(keys: Keys) -> None:
    model = signed_variant(variant("mine", ("gpu", 1.0)), read_private_key(keys.private("first"), "signing_key"), 1000)
    trusted = TrustedEntries(keys.public("first"))

    trusted.check("mine", entry_of_variant(model))
    for field, value in FIELDS.items():
        found = rejection(trusted, entry_of_variant(replace(model, **{field: value})), "mine")

        assert found.reason == "BAD_SIGNATURE", field


def test_prefix_that_the_controller_adds_is_not_signed(keys: Keys) -> None:
    uploaded = replace(variant("mine"), source="objects:")
    model = signed_variant(uploaded, read_private_key(keys.private("first"), "signing_key"), 1000)

    TrustedEntries(keys.public("first")).check("mine", entry_of_variant(replace(model, source="objects:adapters/1/")))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@given(
    seconds=st.floats(0, 1e6, allow_nan=False),
    guidance=st.floats(0, 100),
    licence=st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20),
    now_ms=st.integers(0, 2**53),
)
def test_signature_holds_over_the_wire_and_in_the_ledger(
    seconds: float, guidance: float, licence: str, now_ms: int, pair: Keys
) -> None:
    model = replace(variant("mine", ("gpu", seconds)), default_guidance_scale=guidance, licence=licence)
    key = read_private_key(pair.private("first"), "signing_key")
    signed = signed_variant(model, key, now_ms)
    sent = pb.GetModelResponse(model=nested(signed, pb.ModelVariant)).SerializeToString()

    received = decode(pb.GetModelResponse.FromString(sent).model, ModelVariant)
    stored = from_json(ModelVariant, json.loads(json.dumps(to_json(received), sort_keys=True)))

    assert stored == signed
    TrustedEntries(pair.public("first")).check("mine", entry_of_variant(stored))
    assert key_id_of(key.public_key()) == pair.id_of("first")
