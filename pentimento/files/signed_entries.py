"""Sign entries of registries with ed25519, and verify them before anything that they name is loaded.

    key = read_private_key(Path("registry.key"), "signing_key")
    signed = with_signature(entry, key, now_ms)                          # an object of JSON
    trusted = TrustedEntries(Path("registry.pub"), Path("components"))   # one or several public keys, PEM
    trusted.check("tiny-heavy", signed)                                  # raises FailedPrecondition
    trusted.check_lora(selection, model_digest, family)                  # an uploaded LoRA, by the entry that it brings

The signed bytes are a line with the form and the milliseconds of the signature, then the entry without its signature as
JSON with sorted keys, without spaces, in ASCII.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pentimento.domain.adapters import AdapterKind, LoraUpload, is_digest
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, PentimentoError
from pentimento.domain.generation import LoraSelection
from pentimento.domain.models import OBJECTS_SOURCE, EntrySignature, ModelVariant
from pentimento.domain.reasons import Reason
from pentimento.files.ed25519_keys import key_id_of, read_public_keys
from pentimento.files.json_values import from_json, to_json
from pentimento.files.private_files import make_private_directory, replace_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

Entry = Mapping[str, Any]

SIGNATURE = "signature"


def with_signature(entry: Entry, key: "Ed25519PrivateKey", now_ms: int) -> dict[str, Any]:
    """Return the entry with its signature, in place of an earlier one."""
    value = base64.b64encode(key.sign(_signed_bytes(entry, now_ms))).decode()
    return {**entry, SIGNATURE: to_json(EntrySignature(key_id_of(key.public_key()), now_ms, value))}


def signed_variant(model: ModelVariant, key: "Ed25519PrivateKey", now_ms: int) -> ModelVariant:
    """Return the registration of a model with its signature."""
    signed = with_signature(entry_of_variant(model), key, now_ms)
    return replace(model, signature=from_json(EntrySignature, signed[SIGNATURE]))


def entry_of_variant(model: ModelVariant) -> Entry:
    """Return the signed form of a registration: the controller adds the prefix of the object store's keys later."""
    source = OBJECTS_SOURCE if model.source.startswith(OBJECTS_SOURCE) else model.source
    entry: Entry = to_json(replace(model, source=source))
    return entry


def signed_upload(upload: LoraUpload, key: "Ed25519PrivateKey", now_ms: int) -> LoraUpload:
    """Return an upload with its signed entry."""
    return replace(upload, signed_entry=json.dumps(with_signature(entry_of_upload(upload), key, now_ms)))


def entry_of_upload(upload: LoraUpload) -> Entry:
    """Return the signed form of an uploaded LoRA."""
    fields = {name: value for name, value in to_json(upload).items() if name != "signed_entry"}
    return {"kind": AdapterKind.LORA.value, **fields}


def read_entry(text: str) -> Entry:
    """Return the entry of a text; an empty one, which is not signed, for a text that is no object of JSON."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def check_signed_upload(upload: LoraUpload, field: str) -> None:
    """Check that the signed entry has the upload's other fields; the signature is for workers to verify. Raises
    InvalidArgument that names the field."""
    entry = read_entry(upload.signed_entry)
    if {name: value for name, value in entry.items() if name != SIGNATURE} != entry_of_upload(upload):
        raise InvalidArgument.of(field, "must be JSON with the upload's other fields, and their signature")
    from_json(EntrySignature, entry.get(SIGNATURE), f"{field}.{SIGNATURE}")


class TrustedEntries:
    """Verify entries by the public keys of a file, which is read at every check: rotated keys need no restart.
    `seen_below`: directory that remembers the last entry of each name, so that an earlier one with another digest is
    rejected; None to remember none."""

    def __init__(self, keys: Path, seen_below: Path | None = None) -> None:
        """Read the keys. Raises InvalidArgument for an invalid file."""
        self._path = keys
        self._seen = seen_below / "entries" if seen_below is not None else None
        read_public_keys(keys)

    def check(self, component: str, entry: Entry) -> None:
        """Raise FailedPrecondition, with `component` and `key_id` in its metadata: UNSIGNED_ENTRY, UNKNOWN_SIGNING_KEY,
        also while the file is invalid, BAD_SIGNATURE for an entry that was changed after it was signed, or
        STALE_ENTRY."""
        try:
            keys = read_public_keys(self._path)
        except InvalidArgument as error:
            problem = f"its signature cannot be checked: {error}"
            raise _rejected(Reason.UNKNOWN_SIGNING_KEY, component, "", problem) from None
        known = f"{self._path} has the keys {', '.join(keys)}"
        try:
            signature = from_json(EntrySignature, entry.get(SIGNATURE), SIGNATURE)
        except PentimentoError:
            raise _rejected(Reason.UNSIGNED_ENTRY, component, "", f"its entry is not signed; {known}") from None
        key_id = signature.key_id
        if key_id not in keys:
            problem = f"its entry is signed by the key {key_id[:64]}; {known}"
            raise _rejected(Reason.UNKNOWN_SIGNING_KEY, component, key_id, problem)
        is_whole = entry.get("name") == component and is_digest(str(entry.get("digest")))
        if not is_whole or not _verifies(keys[key_id], entry, signature):
            problem = f"its entry is not one that the key {key_id} signed for this name, with a digest"
            raise _rejected(Reason.BAD_SIGNATURE, component, key_id, problem)
        self._check_newest(component, entry, signature)

    def check_lora(self, lora: LoraSelection, model_digest: str, family: str) -> None:
        """Check the entry of an uploaded LoRA, for a model. Raises as `check`, and BAD_SIGNATURE for an entry of
        another file, kind or model."""
        entry = read_entry(lora.signed_entry)
        self.check(lora.name, entry)
        is_its = (entry.get("kind"), entry["digest"]) == (AdapterKind.LORA.value, lora.digest)
        if not is_its or entry.get("family") != family or entry.get("base_digest") not in ("", model_digest):
            problem = f"its entry is signed for another LoRA or model than {lora.digest[:80]} on {model_digest}"
            raise _rejected(Reason.BAD_SIGNATURE, lora.name, str(entry[SIGNATURE]["key_id"]), problem)

    def _check_newest(self, component: str, entry: Entry, signature: EntrySignature) -> None:
        if self._seen is None:
            return
        digest, label = str(entry["digest"]), f"{entry.get('kind', 'model')} {component}"
        place = self._seen / f"{hashlib.sha256(label.encode()).hexdigest()[:32]}.json"
        seen = _read_seen(place)
        if seen is not None and seen["digest"] != digest and seen["signed_at_ms"] > signature.signed_at_ms:
            problem = f"its entry with {digest[:80]} was signed before the one seen here, with {seen['digest']}"
            raise _rejected(Reason.STALE_ENTRY, component, signature.key_id, problem)
        if seen is None or seen["signed_at_ms"] < signature.signed_at_ms:
            # A full disk costs the memory of this entry only.
            with suppress(OSError):
                make_private_directory(self._seen)
                replace_file(place, json.dumps({"digest": digest, "signed_at_ms": signature.signed_at_ms}))


def _read_seen(place: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(place.read_text())
        return {"digest": str(found["digest"]), "signed_at_ms": int(found["signed_at_ms"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _verifies(key: "Ed25519PublicKey", entry: Entry, signature: EntrySignature) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(base64.b64decode(signature.value, validate=True), _signed_bytes(entry, signature.signed_at_ms))
    except (InvalidSignature, ValueError):
        return False
    return True


def _signed_bytes(entry: Entry, signed_at_ms: int) -> bytes:
    plain = {name: value for name, value in entry.items() if name != SIGNATURE}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return f"pentimento registry entry 1 {signed_at_ms}\n{text}".encode()


def _rejected(reason: str, component: str, key_id: str, problem: str) -> FailedPrecondition:
    message = f"{component[:80]}: {problem}"
    return FailedPrecondition(reason, message, metadata={"component": component[:80], "key_id": key_id[:64]})
