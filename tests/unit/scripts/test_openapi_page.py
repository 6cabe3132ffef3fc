"""openapi_page.py: calls, fields, bounds and errors of an API document."""

from typing import Any

from scripts import openapi_page

ERROR = {"description": "wrong | late", "content": {"application/json": {"schema": {"$ref": "#/c/schemas/Error"}}}}
DOCUMENT = {
    "info": {"description": "A ring."},
    "paths": {
        "/v1/rings/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
            "post": {
                "summary": "Forge it.",
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/c/schemas/Ring"}}}},
                "responses": {"200": {"description": "forged"}, "400": ERROR},
            },
        }
    },
    "components": {
        "schemas": {
            "Ring": {
                "type": "object",
                "required": ["size"],
                "additionalProperties": False,
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 9, "description": "in mm"},
                    "gems": {"type": "array", "maxItems": 3, "items": {"properties": {"cut": {"enum": ["a", "b"]}}}},
                    "worn": {"anyOf": [{"type": "boolean", "default": False}, {"type": "null"}]},
                },
            },
            "Error": {"type": "object"},
        }
    },
}


LINES = [
    "| [`POST /v1/rings/{id}`](#post-v1ringsid) | Forge it. |",
    "| `id` | path | text | *required* |",
    "Body, `application/json`: [Ring](#ring)",
    "| 200 |  | forged |",
    "[Errors](#errors-over-http): 400.",
    "| 400 | wrong \\| late |",
    "| `size` | whole number, 1 to 9 | *required* | in mm |",
    "| `gems[].cut` | `a`, `b` |  |  |",
    "| `worn` | true or false | `false` |  |",
    "A field that is none of these is refused by name.",
]
SCHEMAS: list[tuple[dict[str, Any], str]] = [
    ({"type": "string", "minLength": 1, "maxLength": 8}, "text, 1 to 8 characters"),
    ({"type": "string", "pattern": "^a"}, "text of the form `^a`"),
    ({"type": "string", "contentEncoding": "base64"}, "base64"),
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, "whole number"),
    ({"type": "number", "minimum": 0}, "number, at least 0"),
    ({"type": ["string", "null"]}, "text"),
    ({"anyOf": [{"enum": ["auto"]}, {"type": "number"}]}, "`auto` or number"),
    ({"const": "list"}, "`list`"),
]


def test_http_page_has_a_line_for_each_part() -> None:
    page = openapi_page.http_page("", DOCUMENT).splitlines()

    assert [line for line in LINES if line not in page] == []


def test_words_of_schema_describe_allowed_values() -> None:
    assert [openapi_page.words_of(schema) for schema, _ in SCHEMAS] == [words for _, words in SCHEMAS]
