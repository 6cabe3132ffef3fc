"""Writes down every event with its effects, for replays: a switch for those who look into a defect or a simulator."""

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from pentimento.dataplane import Dataplane
from pentimento.dataplane.effects import Effect
from pentimento.dataplane.events import Event
from pentimento.dataplane.recording import header_line, step_line


class EffectsRecorder:
    """Lines are written through as they come: what a killed process recorded is there up to its last event."""

    def __init__(self, path: Path, dataplane: Dataplane) -> None:
        """Begins the file anew. Raises OSError."""
        self._file: TextIO = path.open("w", encoding="utf-8", buffering=1)
        self._file.write(header_line(dataplane.state.epoch, dataplane.state.settings))

    def record(self, now: float, event: Event, effects: Sequence[Effect]) -> None:
        """Changes state."""
        self._file.write(step_line(now, event, effects))

    def close(self) -> None:
        self._file.close()
