"""Make and read ed25519 keys, which sign receipts and registrations; read and create files of signing keys: 64
hexadecimal digits a line, the newest first."""

import hashlib
import re
import secrets
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

from pentimento.domain.errors import InvalidArgument
from pentimento.files.private_files import keep_private_file

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


_KEY = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
MAX_KEY_COUNT = 8


def new_signing_key() -> str:
    """Return a new key, as a line of a file of signing keys."""
    return secrets.token_hex(32)


def keep_signing_keys(path: Path) -> None:
    """Create a file of signing keys with one key if it is missing, as `keep_private_file`."""
    keep_private_file(path, lambda: new_signing_key() + "\n")


def read_signing_keys(path: Path) -> tuple[bytes, ...]:
    """Return the keys of a file, of 32 bytes each. The first one signs; the others are still accepted. Blank lines and
    lines that begin with # are skipped. Raises InvalidArgument that names file and line, never a key."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidArgument.of(str(path), f"cannot be read: {type(error).__name__}") from error
    except UnicodeDecodeError as error:
        # The error includes the bytes that were read.
        raise InvalidArgument.of(str(path), f"cannot be read: {type(error).__name__}") from None
    keys = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if not _KEY.fullmatch(text):
            raise InvalidArgument.of(f"{path}:{number}", "must be 64 hexadecimal digits")
        keys.append(bytes.fromhex(text))
    if not 1 <= len(keys) <= MAX_KEY_COUNT:
        raise InvalidArgument.of(str(path), f"must hold 1 to {MAX_KEY_COUNT} keys, holds {len(keys)}")
    return tuple(keys)
