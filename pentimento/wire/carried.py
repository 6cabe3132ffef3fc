"""Values that no message carries, told by their field: protobuf itself says "Value out of range" of an unnamed one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pentimento.domain.errors import InvalidArgument

BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


@contextmanager
def carried_by(kind: type[Message], values: Mapping[str, Any], place: str = "") -> Iterator[None]:
    """Make such a message of these values, by the names of its fields, within the block. InvalidArgument names the one
    that it cannot carry, behind its `place`: a server, which has the limits that count, would never see it."""
    try:
        yield
    except ValueError:
        for name, field in kind.DESCRIPTOR.fields_by_name.items():
            check_carried(place + name, field, values.get(name))
        raise


def check_carried(place: str, field: Any, value: object) -> None:
    """InvalidArgument for a number that is out of the field's range, and for a text that UTF-8 cannot carry."""
    least, most = BOUNDS.get(field.cpp_type, (0, 0))
    if isinstance(value, int) and field.cpp_type in BOUNDS and not least <= value <= most:
        raise InvalidArgument.of(place, f"must be between {least} and {most}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidArgument.of(place, "must be text that UTF-8 can carry") from None
