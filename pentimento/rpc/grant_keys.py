"""Read the keys of cache grants from a file that gateways and workers share; it may be replaced while they run."""

from pathlib import Path

from pentimento.rpc.kept_reading import KeptReading
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
    """Return the keys of the file; None without a path."""
    return GrantKeys(path) if path is not None else None
