"""Types of the fields in request bodies, and the errors that name a field and its limit.

A body is strict: a text is no number. The texts of a form are JSON, except of fields that are texts. Null means absent,
also an empty word."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import ErrorDetails, InitErrorDetails, core_schema

from pentimento.domain.errors import InvalidArgument
from services.edge.http.bodies import json_of, shown

Schema = dict[str, Any]
INT64 = 2**63 - 1
UINT64 = 2**64 - 1
MAX_NAME_CHARS = 256
MAX_OBJECTS = 16
NULL = {"type": "null"}
# Either alphabet, on one or several lines, or a data URL. The length is validated only when it is decoded.
BASE64_PATTERN = "^(data:[^,]*;base64,)?[A-Za-z0-9+/_= \\t\\r\\n-]*$"
BASE64: Schema = {"type": "string", "contentEncoding": "base64", "pattern": BASE64_PATTERN}
# Messages by pydantic's type of an error; others have its own message.
MESSAGES = {
    "missing": "is required",
    "extra_forbidden": "is not a parameter of this call",
    "string_type": "must be a string",
    "string_unicode": "must be text that UTF-8 can encode, it has half a surrogate pair",
    "string_pattern_mismatch": "must be `auto` or WIDTHxHEIGHT in pixels, such as 512x512",
    "string_too_short": "must have at least {min_length} characters, got {length}",
    "string_too_long": "must have at most {max_length} characters, got {length}",
    "literal_error": "must be one of {words}, got {got!r}",
    "greater_than_equal": "must be at least {ge}, got {got}",
    "less_than_equal": "must be at most {le}, got {got}",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "too_long": "must be a list of at most {max_length}",
    "model_type": "must be an object",
    "value_error": "{error}",
}


def optional_may_be_null(schema: Schema) -> None:
    """Allow null for each optional field of an object's schema, except for files, and leave out pydantic's titles."""
    del schema["title"]
    for name, field in schema.get("properties", {}).items():
        field.pop("title", None)
        if field.get("default", ...) in (None, "", b"", []):
            del field["default"]
        if name not in schema.get("required", ()) and "contentMediaType" not in field:
            choices = [one for one in field.pop("anyOf", [{}]) if one != NULL]
            value = {**(choices[0] if len(choices) == 1 else {"anyOf": choices}), **field}
            schema["properties"][name] = {"anyOf": [value, NULL]}


class Body(BaseModel):
    """An object of a request: its fields and no others. The docstring of a field is its description."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        json_schema_extra=optional_may_be_null,
    )

    @model_validator(mode="before")
    @classmethod
    def _known_and_present(cls, given: Any) -> Any:
        """Return the fields without null. The first unknown one ends the validation: there may be 100,000."""
        if not isinstance(given, dict):
            return given
        if (unknown := next((name for name in given if name not in cls.model_fields), None)) is not None:
            errors: list[InitErrorDetails] = [{"type": "extra_forbidden", "loc": (unknown,), "input": None}]
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Validate the values of a JSON object. InvalidArgument names a field and its limit."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise invalid_argument(error) from None


def invalid_argument(error: ValidationError) -> InvalidArgument:
    """Return the error of a body's first wrong field."""
    first = error.errors(include_url=False)[0]
    return InvalidArgument.of(place_of(first["loc"]), message_of(first))


def place_of(path: tuple[int | str, ...]) -> str:
    """Return the path of a field, such as loras[0].name."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{shown(part)}" for part in path)
    return "".join(parts).removeprefix(".")


def message_of(error: ErrorDetails) -> str:
    """Return what the field must be."""
    given = error["input"]
    limits = {name: f"{limit:g}" if isinstance(limit, float) else limit for name, limit in error.get("ctx", {}).items()}
    # "'a', 'b' or ''": the empty word means absent.
    words = str(limits.get("expected")).replace(" or ", ", ").replace("'", "").strip(", ")
    got = shown(str(given)) if isinstance(given, str | int | float) else type(given).__name__
    length = len(given) if isinstance(given, str) else 0
    values = {"length": length, "got": got, "words": words, "otherwise": error["msg"]}
    return MESSAGES.get(error["type"], "{otherwise}").format_map(limits | values)


def whole_number(value: Any) -> Any:
    """Return 2.0 as 2, which JavaScript's clients may send."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53 else value


def json_value(value: str) -> Any:
    """Return the JSON value of a text; a text that is no JSON stays one, which its type rejects."""
    try:
        return json_of(value)
    except (ValueError, RecursionError):
        return value


def data_of(value: Any) -> bytes:
    """Decode base64 or a data URL: either alphabet, padded or not, on one or several lines."""
    if not isinstance(value, str):
        raise ValueError("must be a string in base64")
    if value.startswith("data:"):
        head, comma, value = value.partition(",")
        if not comma or not head.endswith(";base64"):
            raise ValueError("must be a data URL in base64, such as data:image/png;base64,…")
    text = value.replace("-", "+").replace("_", "/")
    for blank in " \t\r\n":
        text = text.replace(blank, "")
    bare = text.rstrip("=")
    try:
        if len(text) - len(bare) > 2:
            raise ValueError("too much padding")
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be base64, or a data URL in base64") from None


def file_bytes(data: bytes) -> bytes:
    """Return the bytes of an image's file. ValueError for none."""
    if not data:
        raise ValueError("must be a PNG, JPEG or WebP file, got none")
    return data


def image_of_text(value: Any) -> bytes:
    """Return an image from a data URL. ValueError for anything else, and for other URLs."""
    if not isinstance(value, str):
        raise ValueError("must be a data URL, such as data:image/png;base64,…")
    if "://" in value[:16]:
        raise ValueError("must be a data URL (data:image/png;base64,…): no URL is fetched here")
    return file_bytes(data_of(value))


@dataclass(frozen=True)
class Word:
    """One of some words; "" means absent."""

    words: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.literal_schema([*self.words, ""])


Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
RequiredName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
Whole = BeforeValidator(whole_number)
Int64 = Annotated[int, Field(ge=-INT64, le=INT64), Whole]
Number = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)]
Data = Annotated[bytes, BeforeValidator(data_of), WithJsonSchema(BASE64)]
ImageText = Annotated[bytes, BeforeValidator(image_of_text), WithJsonSchema(BASE64)]
FormFile = Annotated[
    bytes,
    AfterValidator(file_bytes),
    WithJsonSchema({"type": "string", "contentMediaType": "application/octet-stream"}),
]


def file_absent(value: Any) -> Any:
    raise ValueError("must be absent: no files are stored here, use image_url")


class ImageUrlBody(Body):
    """An image as OpenAI's clients send it."""

    file_id: SkipJsonSchema[Annotated[str, BeforeValidator(file_absent)]] = ""
    image_url: ImageText
    """a data URL"""


def image_of(value: Any) -> bytes:
    """Return an image from a data URL, or from an object with one."""
    return ImageUrlBody.model_validate(value).image_url if isinstance(value, dict) else image_of_text(value)


def as_list(value: Any) -> list[Any]:
    """Return a list; one image is a list of one."""
    return value if isinstance(value, list) else [value]


IMAGE: Schema = {"anyOf": [BASE64, ImageUrlBody.model_json_schema()]}
IMAGES: Schema = {"anyOf": [IMAGE, {"type": "array", "items": IMAGE, "maxItems": MAX_OBJECTS}]}
JsonImage = Annotated[bytes, BeforeValidator(image_of), WithJsonSchema(IMAGE)]
JsonImages = Annotated[list[JsonImage], Field(max_length=MAX_OBJECTS), BeforeValidator(as_list), WithJsonSchema(IMAGES)]
