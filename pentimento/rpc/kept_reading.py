"""What files hold, read again while a process runs."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from pentimento.rpc.watched_file import WatchedFile
from pentimento.settings import SettingsError

logger = logging.getLogger(__name__)

Held = TypeVar("Held")


class KeptReading(Generic[Held]):
    """What was read last; read again when one of the files changes, looked at once a second at most. What cannot be
    read changes nothing: whoever replaces files may leave them without their content, or unfit for each other, for a
    moment. SettingsError where it is so at first."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], Held], in_vain: str) -> None:
        """`read` raises SettingsError for files that do not hold what they should; `in_vain` is logged then."""
        self._files = [WatchedFile(path) for path in paths]
        self._read = read
        self._in_vain = in_vain
        self._held = read()

    def current(self) -> Held:
        """Return it: the same object for as long as the files stay as they are."""
        # All are asked: each tells of a change once.
        if any([file.changed() for file in self._files]):
            try:
                self._held = self._read()
            except SettingsError as error:
                for file in self._files:
                    file.read_in_vain(error)
                logger.error(self._in_vain, extra={"problem": str(error)})
        return self._held
