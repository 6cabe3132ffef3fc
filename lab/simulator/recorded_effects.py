"""Read a frontdoor's recording of events and effects (`record_effects`), and replay it through another dataplane."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pentimento.dataplane import Dataplane, effects, events
from pentimento.dataplane.machine import HANDLERS
from pentimento.dataplane.recording import FORMAT, tagged
from pentimento.dataplane.settings import DataplaneSettings
from pentimento.domain.errors import InvalidArgument
from pentimento.files.json_values import from_json

_EVENTS = {kind.__name__: kind for kind in HANDLERS}
_EFFECTS = {kind.__name__: kind for kind in effects.EFFECTS}


@dataclass(frozen=True)
class Step:
    """Hold one recorded event; `effects` are the recorded dataplane's answer."""

    line: int
    now: float
    event: events.Event
    effects: tuple[effects.Effect, ...]


@dataclass(frozen=True)
class Divergence:
    """Hold the first step at which the replay answered with other effects."""

    step: Step
    answered: tuple[effects.Effect, ...]


def read_recording(lines: Iterable[str], source: str) -> tuple[Dataplane, Iterator[Step]]:
    """Return a dataplane in the recorded initial state, and the recorded steps. Raises InvalidArgument with file, line
    and field."""
    numbered = iter(enumerate(lines, start=1))
    number, first = next(numbered, (1, ""))
    header = _parse(first, f"{source}:{number}")
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InvalidArgument.of(f"{source}:{number}: format", f"must be {FORMAT}")
    settings = from_json(DataplaneSettings, header.get("settings"), f"{source}:{number}: settings")
    epoch = from_json(int, header.get("epoch"), f"{source}:{number}: epoch")
    return Dataplane(epoch, settings), (_step(number, line, source) for number, line in numbered)


def replay(dataplane: Dataplane, steps: Iterable[Step]) -> tuple[int, Divergence | None]:
    """Replay the steps; return the number with the same effects before the first that differs, and that one if any."""
    count = 0
    for step in steps:
        answered = tuple(dataplane.on_event(step.now, step.event))
        # Compared in written form: NaN equals NaN there.
        if [tagged(effect) for effect in answered] != [tagged(effect) for effect in step.effects]:
            return count, Divergence(step, answered)
        count += 1
    return count, None


def _step(number: int, line: str, source: str) -> Step:
    where = f"{source}:{number}"
    parts = _parse(line, where)
    if not isinstance(parts, list) or len(parts) != 3 or not isinstance(parts[2], list):
        raise InvalidArgument.of(where, "must be [time, event, effects]")
    answered = tuple(_untagged(item, _EFFECTS, f"{where}: effects[{index}]") for index, item in enumerate(parts[2]))
    return Step(number, from_json(float, parts[0], f"{where}: time"), _untagged(parts[1], _EVENTS, where), answered)


def _parse(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise InvalidArgument.of(where, "must be JSON") from None


def _untagged(value: Any, kinds: Mapping[str, type], where: str) -> Any:
    if not isinstance(value, list) or len(value) != 2 or value[0] not in kinds:
        raise InvalidArgument.of(where, "must be [a known kind, its fields]")
    return from_json(kinds[value[0]], value[1], f"{where}: {value[0]}")
