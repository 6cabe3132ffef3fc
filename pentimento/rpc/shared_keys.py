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


class GrantKeys:
    """Provide one key a line: the first one signs, all are accepted. Raises SettingsError for a file without a key, or
    with a short one; later an invalid file leaves the previous keys in force."""

    def __init__(self, path: Path) -> None:
        self._reading = KeptReading([path], lambda: read_keys(path), "the keys of grants stay as they were")

    @property
    def signing(self) -> bytes:
        return self.believed[0]

    @property
    def believed(self) -> tuple[bytes, ...]:
        return self._reading.current()


def read_keys(path: Path) -> tuple[bytes, ...]:
    try:
        keys = tuple(line.strip() for line in path.read_bytes().splitlines() if line.strip())
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    if not keys or any(len(key) < MIN_KEY_CHARS for key in keys):
        raise SettingsError(f"{path}: must hold a key a line, each of at least {MIN_KEY_CHARS} characters")
    return keys


def open_grant_keys(path: Path | None) -> GrantKeys | None:
    return GrantKeys(path) if path is not None else None


SigningKeys = Callable[[], tuple[bytes, ...]]


def kept_signing_keys(path: Path) -> SigningKeys:
    """Return a function that returns the file's current keys, the signing one first; the previous keys if the file has
    none now. SettingsError names the file if it has none at first."""
    return KeptReading([path], lambda: _read(path), "signing keys not reloaded, the previous ones are used").current


def _read(path: Path) -> tuple[bytes, ...]:
    """Return the keys of the file. SettingsError names it if it has none."""
    try:
        return read_signing_keys(path)
    except InvalidArgument as error:
        raise SettingsError(error.message) from error.__cause__
