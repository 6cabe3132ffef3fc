"""Signatures of uploaded LoRAs: their entries, and the requests that they are checked for."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pentimento.domain.adapters import LoraUpload
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.generation import LoraSelection
from pentimento.files.ed25519_keys import read_private_key
from pentimento.files.signed_entries import TrustedEntries, check_signed_upload, entry_of_upload, signed_upload
from tests.unit.files.signing import Keys

BASE_DIGEST = "sha256:" + "b" * 64
UPLOAD = LoraUpload("ink", "stable_diffusion", "MIT", 9, "sha256:" + "a" * 64, BASE_DIGEST, 0.2)


def selection(keys: Keys, upload: LoraUpload = UPLOAD, key: str = "first", **changes: Any) -> LoraSelection:
    """Return a request's LoRA that was uploaded with a signature."""
    signed = signed_upload(upload, read_private_key(keys.private(key), "signing_key"), 1000)
    return replace(LoraSelection(upload.name, 1.0, upload.digest, None, signed.signed_entry), **changes)


def checked_lora(keys: Keys, lora: LoraSelection, model: str = BASE_DIGEST, family: str = "stable_diffusion") -> str:
    """Return the reason of the rejection of a LoRA; "" for none."""
    try:
        TrustedEntries(keys.public("first")).check_lora(lora, model, family)
    except FailedPrecondition as error:
        assert error.metadata["component"] == lora.name
        return error.reason
    return ""


def test_signed_upload_has_an_entry_that_names_kind_and_all_fields(keys: Keys) -> None:
    entry = json.loads(selection(keys).signed_entry)

    assert entry.pop("signature")["key_id"] == keys.id_of("first")
    assert entry == {
        "kind": "lora",
        "name": "ink",
        "family": "stable_diffusion",
        "licence": "MIT",
        "size_bytes": 9,
        "digest": "sha256:" + "a" * 64,
        "base_digest": BASE_DIGEST,
        "latest_start_fraction": 0.2,
    }


def test_lora_with_its_signed_entry_is_accepted_on_its_models_only(keys: Keys) -> None:
    of_family = selection(keys, replace(UPLOAD, base_digest=""))

    assert (checked_lora(keys, selection(keys)), checked_lora(keys, of_family, model="sha256:other")) == ("", "")
    assert checked_lora(keys, selection(keys), model="sha256:other") == "BAD_SIGNATURE"
    assert checked_lora(keys, of_family, family="flux") == "BAD_SIGNATURE"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"signed_entry": ""}, "UNSIGNED_ENTRY"),
        ({"signed_entry": "[" * 100_000}, "UNSIGNED_ENTRY"),
        ({"signed_entry": "[]"}, "UNSIGNED_ENTRY"),
        ({"signed_entry": json.dumps(entry_of_upload(UPLOAD))}, "UNSIGNED_ENTRY"),
        ({"name": "ash"}, "BAD_SIGNATURE"),
        ({"digest": "sha256:" + "c" * 64}, "BAD_SIGNATURE"),
    ],
)
def test_lora_is_rejected_with_another_entry(changes: dict[str, Any], reason: str, keys: Keys) -> None:
    assert checked_lora(keys, selection(keys, **changes)) == reason


def test_lora_of_another_key_or_kind_is_rejected(keys: Keys) -> None:
    model = {**entry_of_upload(UPLOAD), "kind": "controlnet"}
    other_kind = selection(keys, signed_entry=json.dumps(keys.signed("first", model)))

    assert checked_lora(keys, selection(keys, key="second")) == "UNKNOWN_SIGNING_KEY"
    assert checked_lora(keys, other_kind) == "BAD_SIGNATURE"


@pytest.mark.parametrize("field", sorted(set(vars(UPLOAD)) - {"signed_entry"}))
def test_upload_with_the_entry_of_another_one_is_rejected(field: str, keys: Keys) -> None:
    signed = signed_upload(UPLOAD, read_private_key(keys.private("first"), "signing_key"), 1000)
    other = {"size_bytes": 8, "latest_start_fraction": 0.5}.get(field, "other")

    check_signed_upload(signed, "upload.signed_entry")
    with pytest.raises(InvalidArgument, match="must be JSON with the upload's other fields") as caught:
        check_signed_upload(replace(signed, **{field: other}), "upload.signed_entry")
    assert caught.value.violations[0].field == "upload.signed_entry"


def test_upload_with_an_entry_that_has_no_signature_is_rejected(keys: Keys) -> None:
    unsigned = replace(UPLOAD, signed_entry=json.dumps(entry_of_upload(UPLOAD)))

    with pytest.raises(InvalidArgument) as caught:
        check_signed_upload(unsigned, "upload.signed_entry")
    assert caught.value.violations[0].field.startswith("upload.signed_entry.signature")
