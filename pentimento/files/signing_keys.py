"""Read and create files of signing keys: 64 hexadecimal digits a line, the newest first."""

import re
import secrets
from pathlib import Path

from pentimento.domain.errors import InvalidArgument
from pentimento.files.private_files import keep_private_file

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
