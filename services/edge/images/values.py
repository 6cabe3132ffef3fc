"""Validate the values of requests, from JSON or from a form's texts, by the table of fields. Pure.

Every reader raises InvalidArgument with the field and its limit.
"""

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from pentimento.domain.errors import InvalidArgument
from services.edge.images.fields import INT64, QUALITY_WORDS, SIZE_PATTERN, FieldKind, RequestField

_SIZE = re.compile(SIZE_PATTERN)
_SHOWN_CHARS = 40
# Clients send these empty if their user did not choose a value.
_EMPTY_IS_ABSENT = frozenset({FieldKind.WORD, FieldKind.SIZE, FieldKind.QUALITY})
_DATA_URL = "data:"
# Commas bound the number of values without parsing; prompts may have some too. Five million values in a body of 16 MiB
# would block the process for two seconds and take 500 MiB.
MOST_COMMAS = 100_000


def read_json(body: bytes) -> dict[str, Any]:
    """Parse a body as a JSON object. InvalidArgument for anything else."""
    if body.count(b",") > MOST_COMMAS:
        raise InvalidArgument.of("body", f"must have at most {MOST_COMMAS} values")
    try:
        document = json_of(body)
    except (ValueError, RecursionError):
        raise InvalidArgument.of("body", "must be a JSON object in UTF-8") from None
    if not isinstance(document, dict):
        raise InvalidArgument.of("body", "must be a JSON object")
    return document


def json_of(text: str | bytes) -> Any:
    """Parse a JSON text; bytes are UTF-8. ValueError for invalid JSON or too many values, RecursionError if nested too
    deep, InvalidArgument for a repeated name."""
    if (text.count(",") if isinstance(text, str) else text.count(b",")) > MOST_COMMAS:
        raise ValueError("too many values")
    # The parser itself would also decode UTF-16 and UTF-32. RFC 8259 allows to ignore a byte order mark.
    whole = text if isinstance(text, str) else text.decode("utf-8-sig")
    return json.loads(whole, parse_constant=no_constant, object_pairs_hook=object_of)


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. InvalidArgument for a repeated name: a proxy that validated the text may have used the other
    value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise InvalidArgument.of(shown(counts.most_common(1)[0][0]), "must occur once")
    return found


def no_constant(name: str) -> Any:
    """Reject NaN and the infinities, which are not JSON."""
    raise ValueError(name)


def validated(given: Mapping[str, Any], fields: Mapping[str, RequestField], place: str = "") -> dict[str, Any]:
    """Return the validated values by field; null and an empty word mean absent."""
    for name in given:
        if name not in fields:
            raise InvalidArgument.of(place + shown(name), "is not a parameter of this call")
    values = {}
    for field in fields.values():
        value = given.get(field.name)
        if value == "" and field.kind in _EMPTY_IS_ABSENT:
            value = None
        if value is not None:
            values[field.name] = READERS[field.kind](field, place + field.name, value)
        elif field.required:
            raise InvalidArgument.of(place + field.name, "is required")
    return values


def from_texts(given: Mapping[str, str], fields: Mapping[str, RequestField]) -> dict[str, Any]:
    """Return the JSON values of a form's texts; None for an empty one, except of TEXT. A text that is not JSON stays a
    text, which its reader rejects."""
    return {name: from_text(fields[name], text) if name in fields else text for name, text in given.items()}


def from_text(field: RequestField, text: str) -> Any:
    if not text and field.kind is not FieldKind.TEXT:
        return None
    if field.kind in (FieldKind.TEXT, FieldKind.WORD, FieldKind.SIZE, FieldKind.BYTES):
        return text
    if field.kind is FieldKind.QUALITY and text in QUALITY_WORDS:
        return text
    try:
        return json_of(text)
    except (ValueError, RecursionError):
        return text


def shown(text: str) -> str:
    """Return a client's text in a form that is safe to show in an error."""
    return "".join(char if char.isprintable() else "?" for char in text[:_SHOWN_CHARS]) or "''"


def read_text(field: RequestField, place: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgument.of(place, "must be a string")
    least, most = int(field.least or 0), field.most
    if not least <= len(value) or (most is not None and len(value) > most):
        limit = f"{least} to {most:g}" if most is not None else f"at least {least}"
        raise InvalidArgument.of(place, f"must have {limit} characters, got {len(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument.of(place, "must be text that UTF-8 can encode, it has half a surrogate pair") from None
    return value


def read_word(field: RequestField, place: str, value: Any) -> str:
    if not isinstance(value, str) or value not in field.words:
        got = f", got {shown(value)!r}" if isinstance(value, str) else ""
        raise InvalidArgument.of(place, f"must be one of {', '.join(field.words)}{got}")
    return value


def read_size(field: RequestField, place: str, value: Any) -> tuple[int, int] | None:
    """Return width and height in pixels; None for `auto`."""
    if not isinstance(value, str) or not _SIZE.fullmatch(value):
        raise InvalidArgument.of(place, "must be `auto` or WIDTHxHEIGHT in pixels, such as 512x512")
    if value == "auto":
        return None
    width, _, height = value.partition("x")
    return int(width), int(height)


def read_integer(field: RequestField, place: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument.of(place, "must be an integer")
    least = -INT64 if field.least is None else int(field.least)
    most = INT64 if field.most is None else int(field.most)
    if not least <= value <= most:
        raise InvalidArgument.of(place, f"must be between {least} and {most}, got {shown(str(value))}")
    return value


def read_number(field: RequestField, place: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument.of(place, "must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidArgument.of(place, "must be a finite number")
    least = -math.inf if field.least is None else field.least
    most = math.inf if field.most is None else field.most
    if not least <= number <= most:
        raise InvalidArgument.of(place, f"must be between {least:g} and {most:g}, got {number:g}")
    return number


def read_boolean(field: RequestField, place: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument.of(place, "must be true or false")
    return value


def read_quality(field: RequestField, place: str, value: Any) -> float | None:
    """Return the share of the from-scratch quality; None for the deployment's default."""
    if isinstance(value, str):
        return QUALITY_WORDS[read_word(field, place, value)]
    return read_number(field, place, value)


def read_bytes(field: RequestField, place: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise InvalidArgument.of(place, "must be a string in base64")
    return bytes_of_text(place, value)


def bytes_of_text(place: str, text: str) -> bytes:
    """Decode base64 or a data URL: either alphabet, padded or not, on one or several lines."""
    if text.startswith(_DATA_URL):
        head, comma, text = text.partition(",")
        if not comma or not head.endswith(";base64"):
            raise InvalidArgument.of(place, "must be a data URL in base64, such as data:image/png;base64,…")
    text = text.replace("-", "+").replace("_", "/")
    for blank in " \t\r\n":
        text = text.replace(blank, "")
    bare = text.rstrip("=")
    try:
        if len(text) - len(bare) > 2:
            raise ValueError("too much padding")
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument.of(place, "must be base64, or a data URL in base64") from None


def read_image(field: RequestField, place: str, value: Any) -> bytes:
    """Return an image from a data URL, given as a text or as `{"image_url": …}` like OpenAI's clients send it."""
    if isinstance(value, dict):
        if value.get("file_id") is not None:
            raise InvalidArgument.of(f"{place}.file_id", "must be absent: no files are stored here, use image_url")
        for name in value:
            if name not in ("image_url", "file_id"):
                raise InvalidArgument.of(f"{place}.{shown(name)}", "is not a parameter of this call")
        place, value = f"{place}.image_url", value.get("image_url")
    if not isinstance(value, str):
        raise InvalidArgument.of(place, "must be a data URL, such as data:image/png;base64,…")
    if "://" in value[:16]:
        raise InvalidArgument.of(place, "must be a data URL (data:image/png;base64,…): no URL is fetched here")
    data = bytes_of_text(place, value)
    if not data:
        raise InvalidArgument.of(place, "must be a PNG, JPEG or WebP file, got none")
    return data


def read_images(field: RequestField, place: str, value: Any) -> list[bytes]:
    """Return a list of images; a single image is a list of one."""
    if not isinstance(value, list):
        return [read_image(field, place, value)]
    most = int(field.most or 0)
    if len(value) > most:
        raise InvalidArgument.of(place, f"must be a list of at most {most} images")
    return [read_image(field, f"{place}[{number}]", one) for number, one in enumerate(value)]


def read_objects(field: RequestField, place: str, value: Any) -> list[dict[str, Any]]:
    most = int(field.most or 0)
    if not isinstance(value, list) or len(value) > most:
        raise InvalidArgument.of(place, f"must be a list of at most {most} objects")
    items = {item.name: item for item in field.items}
    found = []
    for number, one in enumerate(value):
        if not isinstance(one, dict):
            raise InvalidArgument.of(f"{place}[{number}]", "must be an object")
        found.append(validated(one, items, f"{place}[{number}]."))
    return found


READERS: dict[FieldKind, Callable[[RequestField, str, Any], Any]] = {
    FieldKind.TEXT: read_text,
    FieldKind.WORD: read_word,
    FieldKind.SIZE: read_size,
    FieldKind.INTEGER: read_integer,
    FieldKind.NUMBER: read_number,
    FieldKind.BOOLEAN: read_boolean,
    FieldKind.QUALITY: read_quality,
    FieldKind.BYTES: read_bytes,
    FieldKind.IMAGE: read_image,
    FieldKind.IMAGES: read_images,
    FieldKind.OBJECTS: read_objects,
}
