"""Schemas of the API document: requests, from the table of fields that validates them, and answers."""

from typing import Any

from services.edge.images.fields import EDIT_FIELDS, INT64, JSON_EDIT_FIELDS, SIZE_PATTERN, FieldKind, RequestField

Schema = dict[str, Any]
# Either alphabet, on one or several lines, or a data URL. The length is validated only when it is decoded.
BASE64_PATTERN = "^(data:[^,]*;base64,)?[A-Za-z0-9+/_= \\t\\r\\n-]*$"
BASE64 = {"type": "string", "contentEncoding": "base64", "pattern": BASE64_PATTERN}


def reference(name: str) -> Schema:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def object_schema(fields: tuple[RequestField, ...]) -> Schema:
    """Return the schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": {field.name: field_schema(field) for field in fields},
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }


def edit_schema() -> Schema:
    """Return the schema of an edit's form, with its files."""
    schema = object_schema(EDIT_FIELDS)
    file = {"type": "string", "contentMediaType": "application/octet-stream"}
    schema["properties"]["image"] = {**file, "description": "PNG, JPEG or WebP; `image[]` is the same"}
    schema["properties"]["mask"] = {
        **file,
        "description": "PNG of the image's size, white or transparent where the image may change",
    }
    schema["required"].append("image")
    return schema


def json_edit_schema() -> Schema:
    """Return the schema of an edit as JSON: its image is `images` or `image`."""
    return {**object_schema(JSON_EDIT_FIELDS), "anyOf": [{"required": ["images"]}, {"required": ["image"]}]}


def image_schema() -> Schema:
    """Return the schema of an image in JSON: a data URL, or an object with one, as OpenAI's clients send it."""
    wrapped = {"type": "object", "properties": {"image_url": BASE64}, "required": ["image_url"]}
    return {"anyOf": [BASE64, {**wrapped, "additionalProperties": False}]}


def field_schema(field: RequestField) -> Schema:
    """Return the schema of a field's values; null means absent for optional fields."""
    schema = {**kind_schema(field), "description": field.help}
    if field.default is not None:
        schema["default"] = field.default
    if not field.required:
        return {"anyOf": [schema, {"type": "null"}]}
    return schema


def kind_schema(field: RequestField) -> Schema:
    kind = field.kind
    if kind is FieldKind.TEXT:
        return {"type": "string", **bounds(field, "minLength", "maxLength")}
    if kind is FieldKind.WORD:
        return {"type": "string", "enum": with_empty(field)}
    if kind is FieldKind.SIZE:
        return {"type": "string", "pattern": SIZE_PATTERN}
    if kind is FieldKind.INTEGER:
        wide = {"minimum": -INT64, "maximum": INT64}
        return {"type": "integer", **wide, **bounds(field, "minimum", "maximum")}
    if kind is FieldKind.NUMBER:
        return {"type": "number", **bounds(field, "minimum", "maximum")}
    if kind is FieldKind.BOOLEAN:
        return {"type": "boolean"}
    return wide_schema(field)


def wide_schema(field: RequestField) -> Schema:
    """Return the schema of a value with parts or with several forms."""
    if field.kind is FieldKind.QUALITY:
        share = {"type": "number", **bounds(field, "minimum", "maximum")}
        return {"anyOf": [{"type": "string", "enum": with_empty(field)}, share]}
    if field.kind is FieldKind.BYTES:
        return dict(BASE64)
    if field.kind is FieldKind.IMAGE:
        return image_schema()
    if field.kind is FieldKind.IMAGES:
        return {"anyOf": [image_schema(), {"type": "array", "items": image_schema(), **bounds(field, "", "maxItems")}]}
    return {"type": "array", "items": object_schema(field.items), **bounds(field, "minItems", "maxItems")}


def with_empty(field: RequestField) -> list[str]:
    """Return the words of a field; for an optional field also the empty one, which means absent."""
    return [*field.words, *(() if field.required else ("",))]


def bounds(field: RequestField, least: str, most: str) -> Schema:
    """Return the bounds that the field has, under their names in a schema."""
    found = {}
    if field.least is not None:
        found[least] = field.least
    if field.most is not None:
        found[most] = field.most
    return found


USAGE = {
    "type": "object",
    "properties": {name: {"type": "integer"} for name in ("input_tokens", "output_tokens", "total_tokens")},
    "required": ["input_tokens", "output_tokens", "total_tokens"],
}
IMAGE = {
    "type": "object",
    "properties": {
        "b64_json": {"type": "string", "contentEncoding": "base64"},
        "url": {"type": "string"},
        "request_id": {"type": "string"},
        "image_index": {"type": "integer"},
        "seed": {"type": "integer"},
        "provenance": {"type": "object"},
    },
    "required": ["request_id", "seed"],
}
IMAGES = {
    "type": "object",
    "properties": {
        "created": {"type": "integer"},
        "background": {"const": "opaque"},
        "data": {"type": "array", "items": IMAGE},
        "failed": {"type": "array", "items": {"type": "object"}},
        "output_format": {"enum": ["png", "jpeg", "webp"]},
        "quality": {"enum": ["medium", "high"]},
        "size": {"type": "string", "pattern": "^[0-9]+x[0-9]+$"},
        "usage": USAGE,
    },
    "required": ["created", "data", "output_format", "size", "usage"],
}
MODEL_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
        "pentimento": {"type": "object"},
    },
    "required": ["id", "object", "created", "owned_by"],
}
MODEL_LIST = {
    "type": "object",
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": reference("Model")}},
    "required": ["object", "data"],
}
ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
