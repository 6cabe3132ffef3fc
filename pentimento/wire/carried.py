"""Values that no message carries, told by their field: protobuf itself says "Value out of range" of an unnamed one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pentimento.domain.errors import InvalidArgument

BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
KINDS = {
    **dict.fromkeys(BOUNDS, "a whole number"),
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
}

MessageKind = TypeVar("MessageKind", bound=Message)


def carried(kind: type[MessageKind], place: str = "", **values: Any) -> MessageKind:
    """Return such a message of these values. InvalidArgument names the one that it cannot carry, behind its `place`."""
    with carried_by(kind, values, place):
        return kind(**values)


@contextmanager
def carried_by(kind: type[Message], values: Mapping[str, Any], place: str = "") -> Iterator[None]:
    """Make such a message of these values, by the names of its fields, within the block. InvalidArgument names the one
    that it cannot carry, behind its `place`: a server, which has the limits that count, would never see it."""
    try:
        yield
    except (ValueError, TypeError, OverflowError):
        for name in kind.DESCRIPTOR.fields_by_name:
            check_carried(kind, name, values.get(name), place)
        raise


def check_carried(kind: type[Message], name: str, value: object, place: str = "") -> None:
    """InvalidArgument for a number that is out of the field's range, a text that UTF-8 cannot carry, and what is of
    another kind. It never has the value, which may be a prompt."""
    field = kind.DESCRIPTOR.fields_by_name[name]
    least, most = BOUNDS.get(field.cpp_type, (0, 0))
    if isinstance(value, int) and field.cpp_type in BOUNDS and not least <= value <= most:
        raise InvalidArgument.of(place + name, f"must be between {least} and {most}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidArgument.of(place + name, "must be text that UTF-8 can carry") from None
    if value is None or field.is_repeated or field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        # What messages within it and lists carry is judged where those are made.
        return
    try:
        kind(**{name: value})
    except (ValueError, TypeError, OverflowError):
        raise InvalidArgument.of(place + name, f"must be {kind_of(field)}, got {type(value).__name__}") from None


def kind_of(field: Any) -> str:
    """Return in words what a field carries."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "bytes" if field.type == FieldDescriptor.TYPE_BYTES else "text"
    return KINDS[field.cpp_type]
