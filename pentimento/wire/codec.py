"""Convert dataclasses to protobuf messages and back, by the names of their fields.

    message = encode(route, pb.Route)
    route = decode(message, Route, "route")
    request = pb.ExecuteRequest(route=nested(route, pb.Route))  # copies the route's bytes once

A converter is compiled from the fields of its class and message on first use, as `dataclasses` compiles `__init__`. A
field that only one side has is a TypeError then, unless `exceptions` names it.

- Enumeration: by the member's name, behind the message's prefix. 0 is None where the field may be None.
- Optional field: absent is None, or the default of a field that cannot be None.
- `tuple`, `frozenset`: repeated. `tuple | None`: a message with one repeated field.
- Union of classes: a message with one oneof. The class's name is that of the member's message.
- `limit` in a field's metadata: decoding refuses more items before it reads any.

InvalidArgument names the path of a value that the message cannot carry, or that the class refuses, never the value.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.shapes import FieldShape, fields_of, item_of, members_of, without_none
from pentimento.wire.exceptions import CLASS_ONLY, EXCEPTIONS, LENIENT, MESSAGE_ONLY
from pentimento.wire.fields import (
    UNWRITABLE,
    ClassField,
    Field,
    Nested,
    RuledField,
    behind,
    below,
    listed,
    numbers_of,
    only_field,
    uncarried,
)

T = TypeVar("T")
E = TypeVar("E", bound=Enum)
M = TypeVar("M", bound=Message)


class Converter(Generic[T, M]):
    """Convert values of a class, or of a union of classes, to one kind of message and back."""

    def __init__(self, message: type[M], parts: Nested) -> None:
        self._message = message
        self._parts = parts
        self._to_fields, self._from_message = parts.to_fields, parts.from_message

    def encode(self, value: T) -> M:
        """Return the message of a value. Raises InvalidArgument for a value that it cannot carry."""
        try:
            return self._message(**self._to_fields(value))
        except UNWRITABLE as error:
            raise self._parts.unwritable(value, "") or error from None

    def nested(self, value: T) -> dict[str, Any]:
        """Return what the constructor of an enclosing message takes for a field."""
        return self._to_fields(value)

    def decode(self, message: Message, place: str = "") -> T:
        """Return the value of a message. Raises InvalidArgument, which names the field behind `place`."""
        try:
            value: T = self._from_message(message)
        except (InvalidArgument, KeyError) as error:
            raise self._parts.unreadable(message, place) or error from None
        return value


def converter(kind: Any, message: type[M]) -> Converter[Any, M]:
    """Return the converter between a class, or a union of classes, and a message."""
    found = _CONVERTERS.get((kind, message))
    if found is None:
        found = _CONVERTERS[kind, message] = Converter(message, _parts_of(kind, message))
    return found


def encode(value: object, message: type[M]) -> M:
    """Return the message of a value. Raises InvalidArgument for a value that it cannot carry."""
    kind = type(value)
    encoded: M = (_CONVERTERS.get((kind, message)) or converter(kind, message)).encode(value)
    return encoded


def decode(message: Message, kind: type[T], place: str = "") -> T:
    """Return the value of a message. Raises InvalidArgument, which names the field behind `place`."""
    value: T = (_CONVERTERS.get((kind, type(message))) or converter(kind, type(message))).decode(message, place)
    return value


def nested(value: object, message: type[Message]) -> Any:
    """Return what the constructor of an enclosing message takes for a field.

    A message in its place is copied twice more: for an image of 8 MiB that costs 19 ms instead of 0.3 ms."""
    kind = type(value)
    return (_CONVERTERS.get((kind, message)) or converter(kind, message)).nested(value)


def to_bytes(value: object, message: type[Message]) -> bytes:
    """Return a message's bytes, the same for equal values: for journals, saved plans and hashes."""
    return encode(value, message).SerializeToString(deterministic=True)


def from_bytes(data: bytes, kind: type[T], message: type[Message]) -> T:
    """Return the value that `to_bytes` was given. Raises InvalidArgument for other bytes."""
    try:
        found = message.FromString(data)
    except DecodeError as error:
        raise InvalidArgument.of(message.DESCRIPTOR.name, "must be the bytes of such a message") from error
    return decode(found, kind)


def number_of(member: Enum | None, enum: Any) -> Any:
    """Return the number that a member has in protobuf's enumeration, 0 for None."""
    return numbers_of(type(member), enum.DESCRIPTOR)[member] if member is not None else 0


def member_of(number: int, kind: type[E], enum: Any, place: str) -> E:
    """Return the member of a number in protobuf's enumeration. Raises InvalidArgument for a number that has none."""
    members: dict[int, Any] = {number: member for member, number in numbers_of(kind, enum.DESCRIPTOR).items()}
    if number not in members:
        raise InvalidArgument.of(place, f"must be one of {sorted(members)}, got {number}")
    found: E = members[number]
    return found


def checked(message: type[M], place: str = "", **values: Any) -> M:
    """Return a message of the values. Raises InvalidArgument for a value that it cannot carry."""
    try:
        return message(**values)
    except UNWRITABLE:
        fields: Mapping[str, Any] = message.DESCRIPTOR.fields_by_name
        for name, value in values.items():
            if error := uncarried(fields[name], value, below(place, name)):
                raise error from None
        raise


_CONVERTERS: dict[tuple[Any, type[Message]], Converter[Any, Any]] = {}


class _Fields:
    """The fields of a class and a message, and the functions compiled from them."""

    def __init__(self, kind: type, fields: Iterable[Field | RuledField | ClassField]) -> None:
        self._fields = fields = tuple(fields)
        written = ", ".join(source for field in fields if (source := field.write_source))
        read = ", ".join(field.read_source for field in fields)
        checks = "".join(field.check_source for field in fields)
        source = (
            f"def to_fields(value):\n    return {{{written}}}\n"
            f"def from_message(message):\n{checks}    return Kind({read})\n"
        )
        space: dict[str, Any] = {"Kind": kind}
        for field in fields:
            field.declare(space)
        exec(source, space)
        self.to_fields: Callable[[Any], dict[str, Any]] = space["to_fields"]
        self.from_message: Callable[[Any], Any] = space["from_message"]

    def unwritable(self, value: object, place: str) -> InvalidArgument | None:
        """Return the error of the first field that the message cannot carry."""
        return next((error for field in self._fields if (error := field.unwritable(value, place))), None)

    def unreadable(self, message: Any, place: str) -> InvalidArgument | None:
        """Return the error of the first field that the class cannot take, or else of the whole value."""
        for field in self._fields:
            if error := field.unreadable(message, place):
                return error
        try:
            self.from_message(message)
        except InvalidArgument as error:
            return behind(place, error)
        return None


class _Union:
    """The classes of a union and the members of a oneof. Values of a class that the oneof lacks are refused."""

    def __init__(self, kinds: Sequence[type], message: type[Message]) -> None:
        (oneof,) = message.DESCRIPTOR.oneofs
        self._oneof = oneof.name
        names: dict[str, Any] = {field.message_type.name: field for field in oneof.fields if field.message_type}
        present = {kind: names[kind.__name__] for kind in kinds if kind.__name__ in names}
        self._members = {
            kind: (field.name, _parts_of(kind, GetMessageClass(field.message_type))) for kind, field in present.items()
        }
        self._readers = {name: parts.from_message for name, parts in self._members.values()}

    def to_fields(self, value: object) -> dict[str, Any]:
        """Return the member of a value by its name."""
        name, parts = self._members[type(value)]
        return {name: parts.to_fields(value)}

    def from_message(self, message: Any) -> Any:
        """Return the value of the member that is set."""
        name = message.WhichOneof(self._oneof)
        return self._readers[name](getattr(message, name))

    def unwritable(self, value: object, place: str) -> InvalidArgument | None:
        """Return the error of a value that is of none of the classes, or that its member cannot carry."""
        if type(value) in self._members:
            return self._members[type(value)][1].unwritable(value, place)
        names = listed(kind.__name__ for kind in self._members)
        return InvalidArgument.of(place or self._oneof, f"must be {names}, got {type(value).__name__}")

    def unreadable(self, message: Any, place: str) -> InvalidArgument | None:
        """Return the error of a message without a known member, or of its member."""
        found = message.WhichOneof(self._oneof)
        for name, parts in self._members.values():
            if name == found:
                return parts.unreadable(getattr(message, name), below(place, name))
        names = listed(name for name, _ in self._members.values())
        return InvalidArgument.of(place or self._oneof, f"must be {names}, got {found or 'nothing'}")


_PARTS: dict[tuple[Any, type[Message]], Nested] = {}


def _parts_of(kind: Any, message: type[Message]) -> Nested:
    """Return the functions of a class and a message, compiled once."""
    if (kind, message) not in _PARTS:
        is_union = _has_oneof_alone(message.DESCRIPTOR)
        made = _Union(members_of(kind) or (kind,), message) if is_union else _Fields(kind, _fields(kind, message))
        _PARTS[kind, message] = made
    return _PARTS[kind, message]


def _has_oneof_alone(message: Any) -> bool:
    # Optional fields are oneofs of their own, by a name that begins with an underscore.
    oneofs = [oneof for oneof in message.oneofs if not oneof.name.startswith("_")]
    return bool(oneofs) and all(field.containing_oneof in oneofs for field in message.fields)


def _fields(kind: type, message: type[Message]) -> Iterator[Field | RuledField | ClassField]:
    """Yield the fields in the order of the class. Raises TypeError for a field that only one side has."""
    descriptors: Mapping[str, Any] = message.DESCRIPTOR.fields_by_name
    lacking = set(descriptors) - MESSAGE_ONLY.get(message, frozenset())
    class_only = CLASS_ONLY.get((kind.__name__, message), frozenset())
    for shape in fields_of(kind):
        rule = EXCEPTIONS.get(f"{kind.__name__}.{shape.name}")
        lacking -= set(rule.fields if rule else (shape.name,))
        if rule:
            yield RuledField(shape.name, rule)
        elif shape.name in class_only:
            yield ClassField(shape)
        elif shape.name in descriptors:
            yield _field(shape, descriptors[shape.name])
        else:
            raise TypeError(f"{message.DESCRIPTOR.full_name} has no field for {shape.name} of {kind.__name__}")
    if lacking:
        raise TypeError(f"{kind.__name__} has no fields for {sorted(lacking)} of {message.DESCRIPTOR.full_name}")


def _field(shape: FieldShape, descriptor: Any) -> Field:
    container, kind = item_of(without_none(shape.hint))
    wrapped = only_field(descriptor) if container is not None and not descriptor.is_repeated else None
    message = (wrapped or descriptor).message_type
    is_class = message is not None and not message.GetOptions().map_entry
    parts = _parts_of(kind, GetMessageClass(message)) if is_class else None
    return Field(shape, descriptor, container, kind, wrapped, parts, kind in LENIENT)
