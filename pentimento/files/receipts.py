"""Seal receipts with a digest and an ed25519 signature, and check them.

    text = seal(document, read_private_key(Path("receipts.pem"), "receipt_key_file"))
    document = open_seal(text, public_key)  # raises InvalidArgument for a changed document or another key

The digest and the signature are of the document as JSON with sorted keys and without spaces.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pentimento.domain.errors import InvalidArgument

if TYPE_CHECKING:
    # Imported by the functions that use a key: most frontdoors have none.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_ALGORITHM = "ed25519"


def seal(document: Mapping[str, Any], key: "Ed25519PrivateKey | None") -> str:
    """Return the receipt as JSON, with its digest, and its signature if there is a key."""
    data = _canonical(document)
    sealed: dict[str, Any] = {"receipt": document, "digest": _digest(data)}
    if key is not None:
        public = key.public_key().public_bytes_raw().hex()
        sealed["signature"] = {"algorithm": _ALGORITHM, "public_key": public, "value": key.sign(data).hex()}
    return json.dumps(sealed, ensure_ascii=False)


def open_seal(text: str, public_key: str = "") -> dict[str, Any]:
    """Return the document of a receipt. `public_key`: 64 hexadecimal digits of the key that must have signed it; ""
    accepts any key, and a receipt without a signature. Raises InvalidArgument that names the fault."""
    sealed = _parsed(text)
    document: dict[str, Any] = sealed["receipt"]
    signature = sealed.get("signature")
    try:
        data = _canonical(document)
    except UnicodeEncodeError:
        raise InvalidArgument.of("receipt", "must be text in Unicode") from None
    if sealed.get("digest") != _digest(data):
        raise InvalidArgument.of("digest", "must be that of the receipt, which was changed")
    if signature is None and public_key:
        raise InvalidArgument.of("signature", "must be there: the receipt is not signed")
    if signature is not None:
        _check_signature(signature, data, public_key.lower())
    return document


def _check_signature(signature: Any, data: bytes, public_key: str) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        signed_by, value = signature["public_key"], bytes.fromhex(signature["value"])
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signed_by))
        key.verify(value, data)
    except (KeyError, TypeError, ValueError, InvalidSignature):
        raise InvalidArgument.of("signature", "must be that of the receipt") from None
    if public_key and signed_by != public_key:
        raise InvalidArgument.of("signature.public_key", f"must be {public_key[:64]}, is {signed_by}")


def _parsed(text: str) -> dict[str, Any]:
    try:
        sealed = json.loads(text)
    except (ValueError, RecursionError):
        sealed = None
    if not isinstance(sealed, dict) or not isinstance(sealed.get("receipt"), dict):
        raise InvalidArgument.of("receipt", "must be a JSON document with receipt and digest")
    return sealed


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
