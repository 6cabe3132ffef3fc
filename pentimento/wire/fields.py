"""A field of a class and its field of a message: the source that converts it, and the error of a value that cannot be
converted."""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache
from typing import Any, Protocol

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from pentimento.domain.errors import FieldViolation, InvalidArgument
from pentimento.domain.shapes import FieldShape
from pentimento.wire.exceptions import FieldRule

# Raised by protobuf, a table of numbers or a missing attribute for a value of another type or range.
UNWRITABLE = (ValueError, TypeError, OverflowError, KeyError, AttributeError)
INTEGER_LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
TYPE_NAMES = {
    **dict.fromkeys(INTEGER_LIMITS, "a whole number"),
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_ENUM: "a number of its enumeration",
}


class Nested(Protocol):
    """The converter of a field that holds a class."""

    @property
    def to_fields(self) -> Callable[[Any], dict[str, Any]]: ...

    @property
    def from_message(self) -> Callable[[Any], Any]: ...

    def unwritable(self, value: object, place: str) -> InvalidArgument | None: ...

    def unreadable(self, message: Any, place: str) -> InvalidArgument | None: ...


class Field:
    """A field of a class and the field of the same name of a message.

    `container` holds items of `kind`, which `nested` converts where they are classes. `wrapped` is the one repeated
    field of a message that stands for `tuple | None`. `lenient`: a set leaves out members that this version does not
    know, which a newer peer has."""

    def __init__(
        self,
        shape: FieldShape,
        descriptor: Any,
        container: type | None,
        kind: Any,
        wrapped: Any,
        nested: Nested | None,
        lenient: bool,
    ) -> None:
        self.name = shape.name
        self._shape = shape
        self._descriptor = descriptor
        self._container = container
        self._kind = kind
        self._wrapped = wrapped
        self._nested = nested
        self._lenient = lenient
        self._limit: int | None = shape.metadata.get("limit")
        enum = (wrapped or descriptor).enum_type
        none = {None: 0} if shape.is_optional else {}
        self._numbers: dict[Any, int] = {**none, **numbers_of(kind, enum)} if enum is not None else {}
        self._members = {number: member for member, number in self._numbers.items()}

    def declare(self, space: dict[str, Any]) -> None:
        """Add what the sources call to the namespace that they are compiled in."""
        space[f"number_{self.name}"], space[f"member_{self.name}"] = self._numbers, self._members
        space[f"default_{self.name}"] = self._shape.default
        space[f"check_{self.name}"] = self._check_limit
        if self._nested is not None:
            space[f"write_{self.name}"], space[f"read_{self.name}"] = self._nested.to_fields, self._nested.from_message

    @property
    def check_source(self) -> str:
        """Return the statement that refuses too many items."""
        return f"    check_{self.name}(message, '')\n" if self._limit is not None else ""

    @property
    def write_source(self) -> str:
        """Return the expression of the message's field, of `value`."""
        whole = f"value.{self.name}"
        item = self._item(whole if self._container is None else "one", "write", "number")
        if self._container is not None and item != "one":
            item = f"[{item} for one in {whole}]"
            item = f"sorted({item})" if self._container is frozenset else item
        elif self._container is not None:
            item = whole
        if self._wrapped:
            item = f"{{'{self._wrapped.name}': {item}}}"
        may_be_none = self._shape.is_optional and (self._nested is not None or self._wrapped)
        return f"'{self._descriptor.name}': " + (f"{item} if {whole} is not None else None" if may_be_none else item)

    @property
    def read_source(self) -> str:
        """Return the expression of the class's field, of `message`."""
        whole = f"message.{self._descriptor.name}" + (f".{self._wrapped.name}" if self._wrapped else "")
        item = self._item(whole if self._container is None else "one", "read", "member")
        if _is_map(self._descriptor):
            return f"dict({whole})"
        if self._container is not None:
            known = f" if one in member_{self.name}" if self._lenient else ""
            items = whole if item == "one" else f"[{item} for one in {whole}{known}]"
            item = f"{self._container.__name__}({items})"
        if not self._descriptor.has_presence or (self._members and self._shape.is_optional):
            return item
        absent = "None" if self._shape.is_optional else f"default_{self.name}()"
        if absent != "None" and self._shape.default is None:
            return item
        return f"{item} if message.HasField('{self._descriptor.name}') else {absent}"

    def _item(self, source: str, nested: str, table: str) -> str:
        if self._nested is not None:
            return f"{nested}_{self.name}({source})"
        return f"{table}_{self.name}[{source}]" if self._numbers else source

    def unwritable(self, value: object, place: str) -> InvalidArgument | None:
        """Return the error of a value that the message cannot carry, or None."""
        found, path = getattr(value, self.name, None), below(place, self.name)
        if found is None and (self._shape.is_optional or (self._container is None and self._nested is None)):
            return None
        if self._container is None:
            return self._unwritable_item(found, path)
        if not isinstance(found, Iterable):
            names = f"{self._container.__name__} of {getattr(self._kind, '__name__', self._kind)}"
            return InvalidArgument.of(path, f"must be a {names}, got {type(found).__name__}")
        errors = (self._unwritable_item(item, f"{path}[{index}]") for index, item in enumerate(found))
        return next((error for error in errors if error is not None), None)

    def _unwritable_item(self, item: object, path: str) -> InvalidArgument | None:
        kinds = (self._kind,) if isinstance(self._kind, type) and (self._nested or self._numbers) else ()
        if kinds and not isinstance(item, kinds):
            return InvalidArgument.of(path, f"must be of {self._kind.__name__}, got {type(item).__name__}")
        if self._nested is not None:
            return self._nested.unwritable(item, path)
        return (
            None
            if self._numbers or _is_map(self._descriptor)
            else uncarried(self._wrapped or self._descriptor, item, path)
        )

    def unreadable(self, message: Any, place: str) -> InvalidArgument | None:
        """Return the error of a field that the class cannot take, or None."""
        path = below(place, self.name)
        try:
            self._check_limit(message, path)
        except InvalidArgument as error:
            return error
        errors = (self._unreadable_item(item, item_path) for item, item_path in self._items(message, path))
        return next((error for error in errors if error is not None), None)

    def _unreadable_item(self, item: Any, path: str) -> InvalidArgument | None:
        if self._nested is not None:
            return self._nested.unreadable(item, path)
        if not self._members or self._lenient or item in self._members:
            return None
        known = sorted(number for number in self._members if number)
        return InvalidArgument.of(path, f"must be one of {known}, got {item}")

    def _items(self, message: Any, path: str) -> Iterator[tuple[Any, str]]:
        has_default = self._shape.is_optional or self._shape.default is not None
        if self._descriptor.has_presence and has_default and not message.HasField(self._descriptor.name):
            return
        found = getattr(message, self._descriptor.name)
        if self._wrapped:
            found = getattr(found, self._wrapped.name)
        if self._container is None:
            yield found, path
        else:
            yield from ((item, f"{path}[{index}]") for index, item in enumerate(found))

    def _check_limit(self, message: Any, path: str) -> None:
        """Refuse too many items unread: each costs its sender two bytes, and its reader microseconds."""
        count = len(getattr(message, self._descriptor.name)) if self._limit is not None else 0
        if self._limit is not None and count > self._limit:
            raise InvalidArgument.of(path or self.name, f"must be at most {self._limit}, got {count}")


class RuledField:
    """A field that the table of exceptions converts."""

    check_source = ""

    def __init__(self, name: str, rule: FieldRule) -> None:
        self.name = name
        self._rule = rule

    def declare(self, space: dict[str, Any]) -> None:
        """Add the rule's functions to the namespace that the sources are compiled in."""
        space[f"write_{self.name}"], space[f"read_{self.name}"] = self._rule.write, self._rule.read

    @property
    def write_source(self) -> str:
        """Return the expression of the message's fields, of `value`."""
        return f"**write_{self.name}(value.{self.name})"

    @property
    def read_source(self) -> str:
        """Return the expression of the class's field, of `message`."""
        return f"read_{self.name}(message)"

    def unwritable(self, value: object, place: str) -> InvalidArgument | None:
        """Return the error of a value that the rule refuses, or None."""
        try:
            self._rule.write(getattr(value, self.name))
        except UNWRITABLE as error:
            return InvalidArgument.of(below(place, self.name), f"cannot be sent: {type(error).__name__}")
        return None

    def unreadable(self, message: Any, place: str) -> InvalidArgument | None:
        """Return the error of a message that the rule refuses, or None."""
        try:
            self._rule.read(message)
        except InvalidArgument as error:
            return behind(place, error)
        return None


class ClassField:
    """A field of a class that the message lacks. It is not sent, and read as its default."""

    check_source = ""
    write_source = ""

    def __init__(self, shape: FieldShape) -> None:
        self.name = shape.name
        self._default = shape.default

    def declare(self, space: dict[str, Any]) -> None:
        """Add the default to the namespace that the sources are compiled in."""
        space[f"default_{self.name}"] = self._default

    @property
    def read_source(self) -> str:
        """Return the expression of the class's field."""
        return f"default_{self.name}()"

    def unwritable(self, value: object, place: str) -> None:
        """Return None: the field is not sent."""

    def unreadable(self, message: Any, place: str) -> None:
        """Return None: the field is not read."""


@cache
def numbers_of(kind: type[Enum], enum: Any) -> dict[Enum, int]:
    """Return the numbers of an enumeration's members, by the names behind the message's prefix."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {member: enum.values_by_name[prefix + member.name].number for member in kind}


def uncarried(descriptor: Any, value: object, path: str) -> InvalidArgument | None:
    """Return the error of a value that the field of a message cannot carry, or None. It never repeats the value, which
    may be a prompt."""
    limits = INTEGER_LIMITS.get(descriptor.cpp_type)
    if isinstance(value, int) and limits is not None and not limits[0] <= value <= limits[1]:
        return InvalidArgument.of(path, f"must be between {limits[0]} and {limits[1]}")
    if value is None or descriptor.message_type is not None:
        return None
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return InvalidArgument.of(path, "must be text that UTF-8 can carry")
    probe = GetMessageClass(descriptor.containing_type)
    try:
        probe(**{descriptor.name: [value] if descriptor.is_repeated else value})
    except UNWRITABLE:
        return InvalidArgument.of(path, f"must be {_type_name_of(descriptor)}, got {type(value).__name__}")
    return None


def behind(place: str, error: InvalidArgument) -> InvalidArgument:
    """Return an error with its fields' names behind `place`."""
    violations = tuple(FieldViolation(below(place, one.field), one.description) for one in error.violations)
    message = error.message if not violations or not place else below(place, error.message)
    return InvalidArgument(error.reason, message, violations=violations)


def below(place: str, name: str) -> str:
    """Return the path of a field."""
    return f"{place}.{name}" if place else name


def listed(names: Iterable[str]) -> str:
    """Return names as a sentence lists alternatives."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def only_field(descriptor: Any) -> Any:
    """Return the field of a message that has one."""
    (field,) = descriptor.message_type.fields
    return field


def _is_map(descriptor: Any) -> bool:
    return descriptor.message_type is not None and bool(descriptor.message_type.GetOptions().map_entry)


def _type_name_of(descriptor: Any) -> str:
    if descriptor.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "bytes" if descriptor.type == FieldDescriptor.TYPE_BYTES else "text"
    return TYPE_NAMES[descriptor.cpp_type]
