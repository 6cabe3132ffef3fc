"""Read keys from a file that processes share, which may be replaced while they run: gateways and workers those of cache
grants, frontdoor and edge those of signed addresses and webhooks.
"""

from collections.abc import Callable
from pathlib import Path

from pentimento.domain.errors import InvalidArgument
from pentimento.files.signing_keys import read_signing_keys
from pentimento.rpc.watched_file import KeptReading
from pentimento.settings import SettingsError

MIN_KEY_CHARS = 32
# Returns the present keys: the first one signs, all are accepted.
SharedKeys = Callable[[], tuple[bytes, ...]]


def kept_grant_keys(path: Path) -> SharedKeys:
    """Return the keys of a file with one a line. Raises SettingsError for a file without a key, or with a short one;
    later an invalid file leaves the previous keys in force."""
    return KeptReading([path], lambda: _grant_keys(path), "the keys of grants stay as they were").current


def kept_signing_keys(path: Path) -> SharedKeys:
    """Return the signing keys of a file. Raises SettingsError that names the file if it has none at first; later an
    invalid file leaves the previous keys in force."""
    return KeptReading(
        [path], lambda: _signing_keys(path), "signing keys not reloaded, the previous ones are used"
    ).current


def _grant_keys(path: Path) -> tuple[bytes, ...]:
    try:
        keys = tuple(line.strip() for line in path.read_bytes().splitlines() if line.strip())
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    if not keys or any(len(key) < MIN_KEY_CHARS for key in keys):
        raise SettingsError(f"{path}: must hold a key a line, each of at least {MIN_KEY_CHARS} characters")
    return keys


def _signing_keys(path: Path) -> tuple[bytes, ...]:
    try:
        return read_signing_keys(path)
    except InvalidArgument as error:
        raise SettingsError(error.message) from error.__cause__
