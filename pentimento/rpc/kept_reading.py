"""Read files again when they change while a process runs."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from pentimento.rpc.watched_file import WatchedFile
from pentimento.settings import SettingsError

logger = logging.getLogger(__name__)

Held = TypeVar("Held")


class KeptReading(Generic[Held]):
    """Hold the last valid content of files; read again when one changes, checked once a second at most. Invalid content
    changes nothing: files that are being replaced may be empty, or may not match each other, for a moment.
    SettingsError if they are invalid at first."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], Held], in_vain: str) -> None:
        """Read the files. `read` raises SettingsError for invalid files; then `in_vain` is logged."""
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
            except SettingsError as error:
                for file in self._files:
                    file.read_in_vain(error)
                logger.error(self._in_vain, extra={"problem": str(error)})
        return self._held
