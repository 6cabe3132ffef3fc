"""Operations of the API document: what a call takes, and all that it may be answered with."""

from collections.abc import Iterable
from typing import Any

from services.edge.api_schemas import Schema, reference
from services.edge.http.callers import KEY_HEADER, MAX_KEY_CHARS
from services.edge.http.errors import STATUS_OF, TOO_LARGE

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


def content(schema: Schema, description: str, kind: str = JSON) -> Schema:
    return {"description": description, "content": {kind: {"schema": schema}}}


def error_responses(statuses: Iterable[int]) -> dict[str, Schema]:
    return {str(status): content(reference("Error"), WORDS_OF_STATUS[status]) for status in sorted(statuses)}


# Of what is only asked there is no body, and nobody cancels it.
ALL_ERRORS = {status for status, _ in (*STATUS_OF.values(), TOO_LARGE)}
ASKING_ERRORS = ALL_ERRORS - {413, 499}
KEY_PARAMETER = {
    "name": KEY_HEADER,
    "in": "header",
    "description": "A retry with the same key and body finds the first request; another body is refused.",
    "schema": {"type": "string", "maxLength": MAX_KEY_CHARS, "pattern": "^[!-~]([ -~]*[!-~])?$"},
}
# Of a stream each event; `data` is JSON.
EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["event", "data"],
}
STATUS = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}


def picture_call(summary: str, bodies: dict[str, Schema]) -> Schema:
    """Return an operation that generates images; `bodies` are its forms by their Content-Type."""
    done = content(reference("Pictures"), "the images; with `stream`, events during the steps")
    done["content"][EVENTS] = {"schema": EVENT}
    return {
        "summary": summary,
        "parameters": [KEY_PARAMETER],
        "requestBody": {"required": True, "content": {kind: {"schema": schema} for kind, schema in bodies.items()}},
        "responses": {"200": done, **error_responses(ALL_ERRORS)},
    }


def get_call(summary: str, schema: Schema, suite: bool = True, more: dict[str, Schema] | None = None) -> Schema:
    """Return an operation that only tells; `suite`: it asks the frontdoor."""
    statuses = ASKING_ERRORS if suite else {403}
    told = {status: content(answer, "not now") for status, answer in (more or {}).items()}
    return {
        "summary": summary,
        "responses": {"200": content(schema, "what it is"), **error_responses(statuses), **told},
    }


def path_parameter(name: str, **schema: Any) -> Schema:
    """Return a parameter that stands in the path."""
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1, **schema}}


def query_parameter(name: str, description: str, **schema: Any) -> Schema:
    """Return a parameter that may stand in the query."""
    return {"name": name, "in": "query", "description": description, "schema": schema}
