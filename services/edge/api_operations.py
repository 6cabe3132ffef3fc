"""Operations of the API document: parameters, bodies and all possible answers."""

from collections.abc import Iterable
from typing import Any

from services.edge.api_schemas import Schema, reference
from services.edge.http.callers import KEY_HEADER, MAX_KEY_CHARS
from services.edge.http.errors import STATUS_OF, TOO_LARGE

JSON = "application/json"
EVENTS = "text/event-stream"
WORDS_OF_STATUS = {
    400: "a field is outside its limits",
    401: "the token is missing or unknown",
    403: "the token's role does not allow it, or a page of another origin called",
    404: "it does not exist, or belongs to another tenant",
    409: "the state does not allow it, such as a key used before with another body",
    413: "the body is too large",
    429: "a queue or quota is full; Retry-After has the time to wait",
    499: "the request was cancelled",
    500: "an internal error",
    503: "a service is unavailable; Retry-After has the time to wait",
    504: "the deadline passed or cannot be met",
}


def content(schema: Schema, description: str, kind: str = JSON) -> Schema:
    return {"description": description, "content": {kind: {"schema": schema}}}


def error_responses(statuses: Iterable[int]) -> dict[str, Schema]:
    return {str(status): content(reference("Error"), WORDS_OF_STATUS[status]) for status in sorted(statuses)}


# Reads have no body, and are not cancelled.
ALL_ERRORS = {status for status, _ in (*STATUS_OF.values(), TOO_LARGE)}
ASKING_ERRORS = ALL_ERRORS - {413, 499}
KEY_PARAMETER = {
    "name": KEY_HEADER,
    "in": "header",
    "description": "A retry with the same key and body returns the first request; another body is an error.",
    "schema": {"type": "string", "maxLength": MAX_KEY_CHARS, "pattern": "^[!-~]([ -~]*[!-~])?$"},
}
# An event of a stream; `data` is JSON.
EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["event", "data"],
}
STATUS = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}


def image_operation(summary: str, bodies: dict[str, Schema]) -> Schema:
    """Return an operation that generates images; `bodies`: schemas by Content-Type."""
    done = content(reference("Images"), "the images; with `stream`, events while they are generated")
    done["content"][EVENTS] = {"schema": EVENT}
    return {
        "summary": summary,
        "parameters": [KEY_PARAMETER],
        "requestBody": {"required": True, "content": {kind: {"schema": schema} for kind, schema in bodies.items()}},
        "responses": {"200": done, **error_responses(ALL_ERRORS)},
    }


def get_call(summary: str, schema: Schema, suite: bool = True, more: dict[str, Schema] | None = None) -> Schema:
    """Return an operation that reads; `suite`: it calls the frontdoor."""
    statuses = ASKING_ERRORS if suite else {403}
    further = {status: content(answer, "not ready") for status, answer in (more or {}).items()}
    return {
        "summary": summary,
        "responses": {"200": content(schema, "the present state"), **error_responses(statuses), **further},
    }


def path_parameter(name: str, **schema: Any) -> Schema:
    """Return a required parameter of the path."""
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1, **schema}}


def query_parameter(name: str, description: str, **schema: Any) -> Schema:
    """Return an optional parameter of the query."""
    return {"name": name, "in": "query", "description": description, "schema": schema}
