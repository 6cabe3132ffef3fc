"""`/openapi.json`: the API document (OpenAPI 3.1), made of the same table of fields that requests are judged by."""

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from services.edge.http.errors import STATUS_OF, TOO_LARGE
from services.edge.images.fields import (
    EDIT_FIELDS,
    GENERATION_FIELDS,
    INT64,
    SIZE_PATTERN,
    FieldKind,
    RequestField,
)

Schema = dict[str, Any]
TITLE = "Pentimento"
VERSION = "1"
BASE64_PATTERN = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
JSON = "application/json"
EVENTS = "text/event-stream"
WORDS_OF_STATUS = {
    400: "a field is outside its limits",
    401: "no token, or an unknown one",
    403: "the token's role may not, or a page of another origin asks",
    404: "there is no such thing, or it is another tenant's",
    409: "the state forbids it, such as a key that came with another body",
    413: "the body is too large",
    429: "a queue or a quota is full; Retry-After says when to come back",
    499: "the request was cancelled",
    500: "a defect of this suite",
    503: "a part is down; Retry-After says when to come back",
    504: "the deadline passed, or surely will",
}


def document_routes() -> list[BaseRoute]:
    """Return the route of the document."""
    document = api_document()

    async def openapi(request: Request) -> Response:
        """Tell the document."""
        return JSONResponse(document)

    return [Route("/openapi.json", openapi)]


def api_document() -> Schema:
    """Return the whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": TITLE,
            "version": VERSION,
            "description": "Pictures from prompts, as OpenAI's images API asks for them. Errors have OpenAI's shape.",
        },
        "security": [{}, {"token": []}],
        "paths": {
            "/v1/images/generations": {"post": generation_call()},
            "/v1/images/edits": {"post": edit_call()},
            "/v1/models": {"get": get_call("List the models.", reference("ModelList"))},
            "/v1/models/{model}": {"get": {**get_call("Tell a model.", reference("Model")), "parameters": [MODEL]}},
            "/health": {"get": get_call("Tell that this process answers.", STATUS, suite=False)},
            "/ready": {"get": get_call("Tell whether requests are taken.", STATUS, suite=False, more={"503": STATUS})},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "GenerationRequest": object_schema(GENERATION_FIELDS),
                "EditRequest": edit_schema(),
                "Pictures": PICTURES,
                "Model": MODEL_SCHEMA,
                "ModelList": MODEL_LIST,
                "Error": ERROR,
            },
        },
    }


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def content(schema: Schema, description: str, kind: str = JSON) -> Schema:
    return {"description": description, "content": {kind: {"schema": schema}}}


def error_responses(statuses: Iterable[int]) -> dict[str, Schema]:
    return {str(status): content(reference("Error"), WORDS_OF_STATUS[status]) for status in sorted(statuses)}


ALL_ERRORS = {status for status, _ in (*STATUS_OF.values(), TOO_LARGE)}
KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "A retry with the same key and body finds the first request; another body is refused.",
    "schema": {"type": "string", "maxLength": 128, "pattern": "^[!-~]([ -~]*[!-~])?$"},
}
MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
STATUS = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}


def generation_call() -> Schema:
    """Return the operation of pictures from a prompt."""
    return picture_call("Paint pictures from a prompt.", JSON, reference("GenerationRequest"))


def edit_call() -> Schema:
    """Return the operation of pictures from a picture."""
    return picture_call("Paint pictures from a picture.", "multipart/form-data", reference("EditRequest"))


def picture_call(summary: str, kind: str, schema: Schema) -> Schema:
    done = content(reference("Pictures"), "the pictures; with `stream`, events as steps pass")
    done["content"][EVENTS] = {"schema": {"type": "string"}}
    return {
        "summary": summary,
        "parameters": [KEY_PARAMETER],
        "requestBody": {"required": True, "content": {kind: {"schema": schema}}},
        "responses": {"200": done, **error_responses(ALL_ERRORS)},
    }


def get_call(summary: str, schema: Schema, suite: bool = True, more: dict[str, Schema] | None = None) -> Schema:
    """Return an operation that only tells; `suite`: it asks the frontdoor."""
    statuses = ALL_ERRORS - {413, 499} if suite else {403}
    told = {status: content(answer, "not now") for status, answer in (more or {}).items()}
    return {
        "summary": summary,
        "responses": {"200": content(schema, "what it is"), **error_responses(statuses), **told},
    }


def object_schema(fields: tuple[RequestField, ...]) -> Schema:
    """Return the schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": {field.name: field_schema(field) for field in fields},
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }


def edit_schema() -> Schema:
    """Return the schema of an edit's form: of its files the names alone."""
    schema = object_schema(EDIT_FIELDS)
    file = {"type": "string", "contentMediaType": "application/octet-stream"}
    schema["properties"]["image"] = {**file, "description": "PNG, JPEG or WebP; `image[]` is the same"}
    schema["properties"]["mask"] = {**file, "description": "PNG of the image's size: where it may change"}
    schema["required"].append("image")
    return schema


def field_schema(field: RequestField) -> Schema:
    """Return the schema of one field's values; null is absent, where the field need not be there."""
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
        return {"type": "string", "enum": list(field.words)}
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
    """Return the schema of a value that has parts, or more than one form."""
    if field.kind is FieldKind.QUALITY:
        share = {"type": "number", **bounds(field, "minimum", "maximum")}
        return {"anyOf": [{"type": "string", "enum": list(field.words)}, share]}
    if field.kind is FieldKind.BYTES:
        return {"type": "string", "contentEncoding": "base64", "pattern": BASE64_PATTERN}
    return {"type": "array", "items": object_schema(field.items), **bounds(field, "minItems", "maxItems")}


def bounds(field: RequestField, least: str, most: str) -> Schema:
    """Return the two bounds under their names in a schema, as far as there are any."""
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
PICTURE = {
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
PICTURES = {
    "type": "object",
    "properties": {
        "created": {"type": "integer"},
        "background": {"const": "opaque"},
        "data": {"type": "array", "items": PICTURE},
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
