"""Record every event with its effects for replays, to debug the dataplane or a simulator."""

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from pentimento.dataplane import Dataplane
from pentimento.dataplane.effects import Effect
from pentimento.dataplane.events import Event
from pentimento.dataplane.recording import header_line, step_line


class EffectsRecorder:
    """Write lines through immediately: the recording of a killed process is complete up to its last event."""

    def __init__(self, path: Path, dataplane: Dataplane) -> None:
        """Truncate the file and write its header. Raises OSError."""
        self._file: TextIO = path.open("w", encoding="utf-8", buffering=1)
        self._file.write(header_line(dataplane.state.epoch, dataplane.state.settings))

    def record(self, now: float, event: Event, effects: Sequence[Effect]) -> None:
        """Write a line with the event and its effects."""
        self._file.write(step_line(now, event, effects))

    def close(self) -> None:
        self._file.close()
