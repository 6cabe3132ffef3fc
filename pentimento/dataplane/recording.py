"""What happened and what followed, as lines of JSON: recorded live, replayed through another dataplane.

The first line holds the epoch and the settings, each further one the time, an event and its effects. Floats survive
exactly; there is no prompt and no picture in any of it.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pentimento.dataplane import effects, events
from pentimento.dataplane.machine import Dataplane
from pentimento.dataplane.settings import DataplaneSettings
from pentimento.domain.errors import InvalidArgument

FORMAT = "pentimento-effects"
_EVENTS = {kind.__name__: kind for kind in get_args(events.Event)}
_EFFECTS = {kind.__name__: kind for kind in get_args(effects.Effect)}


@dataclass(frozen=True)
class Step:
    """One recorded event; `effects` are what the recorded dataplane answered."""

    line: int
    now: float
    event: events.Event
    effects: tuple[effects.Effect, ...]


@dataclass(frozen=True)
class Divergence:
    """The first step at which the replay answered something else."""

    step: Step
    answered: tuple[effects.Effect, ...]


def header_line(epoch: int, settings: DataplaneSettings) -> str:
    """Return a recording's first line: its format, epoch and settings as JSON."""
    return json.dumps({"format": FORMAT, "epoch": epoch, "settings": _encode(settings)}) + "\n"


def step_line(now: float, event: events.Event, answered: Sequence[effects.Effect]) -> str:
    """Return the line of one event: its time, the event and its effects as JSON."""
    return json.dumps([now, _tagged(event), [_tagged(effect) for effect in answered]], separators=(",", ":")) + "\n"


def read_recording(lines: Iterable[str], source: str) -> tuple[Dataplane, Iterator[Step]]:
    """Return a dataplane as the recorded one began, and what happened to it. Raises InvalidArgument with file, line,
    field."""
    numbered = iter(enumerate(lines, start=1))
    number, first = next(numbered, (1, ""))
    header = _parse(first, f"{source}:{number}")
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InvalidArgument.of(f"{source}:{number}: format", f"must be {FORMAT}")
    settings = _decode(header.get("settings"), DataplaneSettings, f"{source}:{number}: settings")
    epoch = _decode(header.get("epoch"), int, f"{source}:{number}: epoch")
    return Dataplane(epoch, settings), (_step(number, line, source) for number, line in numbered)


def replay(dataplane: Dataplane, steps: Iterable[Step]) -> tuple[int, Divergence | None]:
    """Play the steps and return how many gave the same effects, and the first that did not."""
    count = 0
    for step in steps:
        answered = tuple(dataplane.on_event(step.now, step.event))
        # As they are written: NaN equals NaN there.
        if [_tagged(effect) for effect in answered] != [_tagged(effect) for effect in step.effects]:
            return count, Divergence(step, answered)
        count += 1
    return count, None


def _step(number: int, line: str, source: str) -> Step:
    where = f"{source}:{number}"
    parts = _parse(line, where)
    if not isinstance(parts, list) or len(parts) != 3 or not isinstance(parts[2], list):
        raise InvalidArgument.of(where, "must be [time, event, effects]")
    answered = tuple(_untagged(item, _EFFECTS, f"{where}: effects[{index}]") for index, item in enumerate(parts[2]))
    return Step(number, _decode(parts[0], float, f"{where}: time"), _untagged(parts[1], _EVENTS, where), answered)


def _parse(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise InvalidArgument.of(where, "must be JSON") from None


def _tagged(value: object) -> list[Any]:
    return [type(value).__name__, _encode(value)]


def _untagged(value: Any, kinds: Mapping[str, type], where: str) -> Any:
    if not isinstance(value, list) or len(value) != 2 or value[0] not in kinds:
        raise InvalidArgument.of(where, "must be [a known kind, its fields]")
    return _decode(value[1], kinds[value[0]], f"{where}: {value[0]}")


def _encode(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, frozenset):
        return sorted(_encode(item) for item in value)
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    # As a word: NaN is no JSON, and differs from itself.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _decode(value: Any, hint: Any, where: str) -> Any:
    """The value as that type; InvalidArgument naming the field where it is not."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        return _decode(value, next(argument for argument in arguments if argument is not NoneType), where)
    if origin in (tuple, frozenset) and isinstance(value, list):
        return origin(_decode_items(value, arguments, where))
    if origin is not None and isinstance(value, dict):
        return {key: _decode(item, arguments[1], f"{where}.{key}") for key, item in value.items()}
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
        return _decode_fields(value, hint, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _decode_enum(value, hint, where)
    if hint is float and (isinstance(value, int | float) or value in ("nan", "inf", "-inf")):
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint):
        return value
    raise InvalidArgument.of(where, f"must be {getattr(hint, '__name__', hint)}, got {type(value).__name__}")


def _decode_items(values: list[Any], arguments: tuple[Any, ...], where: str) -> list[Any]:
    same = len(arguments) == 1 or arguments[-1] is Ellipsis
    hints = [arguments[0]] * len(values) if same else list(arguments)
    if len(hints) != len(values):
        raise InvalidArgument.of(where, f"must have {len(hints)} entries, got {len(values)}")
    return [
        _decode(value, hint, f"{where}[{index}]") for index, (value, hint) in enumerate(zip(values, hints, strict=True))
    ]


def _decode_fields(value: dict[str, Any], kind: type[Any], where: str) -> Any:
    hints = get_type_hints(kind)
    if unknown := value.keys() - hints.keys():
        raise InvalidArgument.of(where, f"has no field {min(unknown)}")
    decoded = {name: _decode(value[name], hints[name], f"{where}.{name}") for name in value}
    try:
        return kind(**decoded)
    except TypeError:
        raise InvalidArgument.of(where, "lacks fields") from None


def _decode_enum(value: Any, kind: type[Enum], where: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise InvalidArgument.of(where, f"must be one of {', '.join(str(item.value) for item in kind)}") from None
