"""The leader's epoch: larger after every restart, so that a newer plan always compares as newer.

An epoch is the wall clock's milliseconds at the start, or one more than the stored one if that is larger: the clock
alone makes it grow where nothing can be stored, the stored one where the clock was set back. Where several controllers
share a ledger, the epoch is the one that this controller claimed there.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from pentimento.domain.epochs import BELIEVABLE_LEAD_MS
from pentimento.files.private_files import make_private_directory

logger = logging.getLogger(__name__)

FILE_NAME = "leader-epoch"


class LeaderEpoch:
    """`value` is the epoch in force. `state_dir` None, or not writable, leaves it to the clock. `on_rise` hears of an
    epoch that gives way to a larger one. `now_ms` is the clock after `wall_ms`, its time at the start, which may have
    been far too early; None where it stands still."""

    def __init__(
        self,
        state_dir: Path | None,
        wall_ms: int,
        on_rise: Callable[[int, int], None] | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._now_ms = now_ms or (lambda: wall_ms)
        self._on_rise = on_rise or (lambda epoch, to: None)
        self._file = state_dir / FILE_NAME if state_dir else None
        self._started_ms = wall_ms
        self.value = max(wall_ms, self._stored() + 1)
        self._store()

    def believable(self, epoch: int) -> bool:
        """Whether some leader can have had this epoch. A liar must not push the epochs to their end."""
        return 0 <= epoch <= max(self._started_ms, self._now_ms()) + BELIEVABLE_LEAD_MS

    def claim(self, epoch: int) -> None:
        """Changes state: lead under an epoch that was claimed elsewhere."""
        self.value = epoch

    def overtake(self, seen: int) -> bool:
        """Rise above an epoch that a replica acts on (changes state); False if it is not above ours."""
        if seen <= self.value or not self.believable(seen):
            return False
        self._on_rise(self.value, seen + 1)
        self.value = seen + 1
        self._store()
        return True

    def _stored(self) -> int:
        try:
            stored = int(self._file.read_text(encoding="ascii")) if self._file else 0
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            logger.warning("leader epoch cannot be read (%s); using the clock", error)
            return 0
        return stored if self.believable(stored) else 0

    def _store(self) -> None:
        if self._file is None:
            return
        try:
            make_private_directory(self._file.parent)
            _write_atomically(self._file, str(self.value))
        except OSError as error:
            logger.warning("leader epoch cannot be stored (%s); using the clock", error)


def _write_atomically(path: Path, text: str) -> None:
    draft = path.with_suffix(".tmp")
    with draft.open("w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
