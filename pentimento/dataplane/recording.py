"""Record events and their effects as lines of JSON.

The first line holds the epoch and the settings, each further one the time, an event and its effects. Floats survive
exactly; a recording contains no prompt and no image.
"""

import json
from collections.abc import Sequence
from typing import Any

from pentimento.dataplane.effects import Effect
from pentimento.dataplane.events import Event
from pentimento.dataplane.settings import DataplaneSettings
from pentimento.files.json_values import to_json

FORMAT = "pentimento-effects"


def header_line(epoch: int, settings: DataplaneSettings) -> str:
    """Return a recording's first line: its format, epoch and settings as JSON."""
    return json.dumps({"format": FORMAT, "epoch": epoch, "settings": to_json(settings)}) + "\n"


def step_line(now: float, event: Event, answered: Sequence[Effect]) -> str:
    """Return the line of one event: its time, the event and its effects as JSON."""
    return json.dumps([now, tagged(event), [tagged(effect) for effect in answered]], separators=(",", ":")) + "\n"


def tagged(value: Event | Effect) -> list[Any]:
    """Return its kind and its fields as JSON values."""
    return [type(value).__name__, to_json(value)]
