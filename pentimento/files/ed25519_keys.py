"""Make and read ed25519 keys, which sign receipts and registrations."""

import hashlib
import re
import secrets
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

from pentimento.domain.errors import InvalidArgument

if TYPE_CHECKING:
    # Imported by the functions that use a key: most processes have none.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_ID_LENGTH = 16
_PUBLIC_SETTING = "registry_public_keys"
_PUBLIC_KEY = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)
_PKCS8 = bytes.fromhex("302e020100300506032b657004220420")


def new_private_key() -> str:
    """Return a new private key as PEM: PKCS #8 of RFC 8410, 32 random bytes."""
    encoded = b64encode(_PKCS8 + secrets.token_bytes(32)).decode()
    return f"-----BEGIN PRIVATE KEY-----\n{encoded}\n-----END PRIVATE KEY-----\n"


def read_private_key(path: Path, setting: str) -> "Ed25519PrivateKey":
    """Return the private key of a PEM file, as `openssl genpkey -algorithm ed25519` writes it. Raises InvalidArgument
    that names the setting and the file, never its content."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise InvalidArgument.of(setting, f"{path}: cannot be read: {error.strerror}") from None
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise InvalidArgument.of(setting, f"{path}: must be a private key as PEM without a password") from None
    if not isinstance(found, Ed25519PrivateKey):
        raise InvalidArgument.of(setting, f"{path}: must be an ed25519 key, is {type(found).__name__}")
    return found


def read_public_keys(path: Path) -> "dict[str, Ed25519PublicKey]":
    """Return the public keys of a PEM file by id. Raises InvalidArgument for a file without one, or with another kind
    of key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    found = {}
    try:
        for block in _PUBLIC_KEY.findall(path.read_bytes()):
            key = load_pem_public_key(block)
            if not isinstance(key, Ed25519PublicKey):
                raise InvalidArgument.of(_PUBLIC_SETTING, f"{path}: must hold ed25519 keys only")
            found[key_id_of(key)] = key
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise InvalidArgument.of(_PUBLIC_SETTING, f"{path}: must hold PEM public keys: {error}") from None
    if not found:
        raise InvalidArgument.of(_PUBLIC_SETTING, f"{path}: must hold at least one PEM block PUBLIC KEY")
    return found


def key_id_of(key: "Ed25519PublicKey") -> str:
    """Return the start of the SHA-256 of a key's public form in DER:
    `openssl pkey -pubin -in registry.pub -outform DER | sha256sum | cut -c1-16`."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()[:_ID_LENGTH]
