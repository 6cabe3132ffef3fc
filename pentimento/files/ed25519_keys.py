"""Read ed25519 keys that sign receipts and registrations."""

from pathlib import Path
from typing import TYPE_CHECKING

from pentimento.domain.errors import InvalidArgument

if TYPE_CHECKING:
    # Imported by the functions that use a key: most processes have none.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


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
