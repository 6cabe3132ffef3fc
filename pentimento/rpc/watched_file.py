"""Watch files that may be replaced while a process runs, and read them again; checked once a second at most.

Keys that processes share are such files: gateways and workers share those of cache grants, frontdoor and edge those of
signed addresses and webhooks."""

import errno
import logging
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.files.ed25519_keys import read_signing_keys
from pentimento.settings import SettingsError

logger = logging.getLogger(__name__)
Held = TypeVar("Held")


CHECK_INTERVAL_S = 1.0
# Temporary shortages of a process: descriptors, memory.
PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

Version = tuple[int, ...]


class WatchedFile:
    """Detect that the file at `path` was written, replaced, or made readable since it was last read."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._monotonic = monotonic
        self._checked_at = monotonic()
        self._version: Version | None = version_of(path)

    def changed(self) -> bool:
        """Return True once for each change; costs a stat a second, and a clock reading otherwise."""
        now = self._monotonic()
        if now - self._checked_at < CHECK_INTERVAL_S:
            return False
        self._checked_at = now
        before, self._version = self._version, version_of(self.path)
        return before != self._version

    def read_in_vain(self, error: Exception) -> None:
        """Record that the changed file could not be read because of `error` or its cause. A temporary cause reports the
        change again."""
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.errno in PASSING:
            self._version = ()


def version_of(path: Path) -> Version | None:
    """Return a version that differs after each change of the file, or of a file in the folder; None if it is
    missing."""
    try:
        status = path.stat()
        files = sorted(path.iterdir()) if stat.S_ISDIR(status.st_mode) else ()
    except OSError:
        return None
    # A change of permissions changes only the last field.
    own = (status.st_mtime_ns, status.st_ino, status.st_size, status.st_ctime_ns)
    return sum((version_of(file) or () for file in files if not file.is_dir()), own)


def text_of(path: Path) -> str:
    """Return the text of a file. SettingsError if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {error}") from error


class KeptReading(Generic[Held]):
    """Hold the last valid content of files; read again when one changes, checked once a second at most. Invalid content
    changes nothing: files that are being replaced may be empty, or may not match each other, for a moment. Raises the
    error of `read` if they are invalid at first."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], Held], in_vain: str) -> None:
        """Read the files. `read` raises SettingsError or a PentimentoError for invalid files; then `in_vain` is
        logged."""
        self._files = [WatchedFile(path) for path in paths]
        self._read = read
        self._in_vain = in_vain
        self._held = read()

    def current(self) -> Held:
        """Return the content: the same object until the files change."""
        # Every file is checked: each reports a change once.
        if any([file.changed() for file in self._files]):
            try:
                self._held = self._read()
            except (SettingsError, PentimentoError, OSError) as error:
                for file in self._files:
                    file.read_in_vain(error)
                logger.error(self._in_vain, extra={"problem": str(error)})
        return self._held


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
