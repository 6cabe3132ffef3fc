"""`/openapi.json`: the API document (OpenAPI 3.1), generated from the models that validate requests."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from services.edge.api.answers import (
    ImagesDocument,
    JobDocument,
    JobListDocument,
    JobUrlDocument,
    ModelDocument,
    ModelListDocument,
    SubmittedJobDocument,
)
from services.edge.api.bodies import EditJobRequest, EditRequest, GenerationRequest, JobRequest, JsonEditRequest
from services.edge.api.fields import Body, Schema
from services.edge.api.images import JSON_TYPE
from services.edge.api.jobs import JobsQuery, ResultQuery
from services.edge.http.answers import STATUS_OF, TOO_LARGE, ErrorDocument
from services.edge.http.bodies import FORM_TYPE
from services.edge.http.callers import KEY_HEADER, MAX_KEY_CHARS

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
ALL_ERRORS = {status for status, _ in (*STATUS_OF.values(), TOO_LARGE)}
# Reads have no body, and are not cancelled.
ASKING_ERRORS = ALL_ERRORS - {413, 499}
COMPONENTS: tuple[type, ...] = (
    GenerationRequest,
    EditRequest,
    JsonEditRequest,
    JobRequest,
    EditJobRequest,
    ImagesDocument,
    ModelDocument,
    ModelListDocument,
    JobDocument,
    JobListDocument,
    SubmittedJobDocument,
    JobUrlDocument,
    ErrorDocument,
)
Kinds = Mapping[str, Schema]


def document_routes(serves_files: bool) -> list[BaseRoute]:
    """Return the route of the document. `serves_files`: this process answers `/v1/files/`."""
    document = api_document(serves_files)

    async def openapi(request: Request) -> Response:
        return JSONResponse(document)

    return [Route("/openapi.json", openapi)]


def api_document(serves_files: bool = True) -> Schema:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pentimento",
            "version": "1",
            "description": "Images from prompts, compatible with OpenAI's images API. Errors have OpenAI's format.",
        },
        "security": [{}, {"token": []}],
        "paths": {**image_paths(), **job_paths(), **(file_paths() if serves_files else {}), **health_paths()},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": component_schemas(),
        },
    }


def component_schemas() -> dict[str, Schema]:
    keyed: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]]
    keyed = [(one.__name__, "validation", TypeAdapter(one)) for one in COMPONENTS]
    _, found = TypeAdapter.json_schemas(keyed, ref_template="#/components/schemas/{model}")
    # Names of classes end in what they are; names of components do not.
    text = re.sub(r'schemas/(\w+?)(Document|Body)"', r'schemas/\1"', json.dumps(found["$defs"]))
    return {re.sub("(Document|Body)$", "", name): untitled(schema) for name, schema in json.loads(text).items()}


def untitled(schema: Schema) -> Schema:
    """Return an object's schema without pydantic's titles."""
    fields = {name: {**field} for name, field in schema["properties"].items()}
    for one in (schema, *fields.values()):
        one.pop("title", None)
    return {**schema, "properties": fields}


def reference(model: type) -> Schema:
    return {"$ref": f"#/components/schemas/{model.__name__.removesuffix('Document')}"}


def call(
    summary: str,
    answer: type | Schema,
    *parameters: Schema,
    words: str = "the present state",
    status: int = 200,
    kind: str = JSON_TYPE,
    body: Kinds | None = None,
    errors: Iterable[int] = ASKING_ERRORS,
) -> Schema:
    """Return an operation: its parameters, its body by Content-Type, its answer and all possible errors."""
    schema = answer if isinstance(answer, dict) else reference(answer)
    failed = {str(one): response(WORDS_OF_STATUS[one], {JSON_TYPE: reference(ErrorDocument)}) for one in sorted(errors)}
    document: Schema = {
        "summary": summary,
        "parameters": list(parameters),
        "responses": {str(status): response(words, {kind: schema}), **failed},
    }
    if body is not None:
        document["requestBody"] = {"required": True, "content": content(body)}
    return document


def response(words: str, kinds: Kinds) -> Schema:
    return {"description": words, "content": content(kinds)}


def content(kinds: Kinds) -> Schema:
    return {kind: {"schema": schema} for kind, schema in kinds.items()}


def parameter(place: str, name: str, description: str = "", /, **schema: Any) -> Schema:
    """Return a parameter of the path, which is required, or of the query."""
    needed = {"required": True} if place == "path" else {}
    said = {"description": description} if description else {}
    return {"name": name, "in": place, **said, **needed, "schema": {"type": "string", **schema}}


def query_parameters(model: type[Body]) -> list[Schema]:
    found = []
    for name, field in model.model_json_schema()["properties"].items():
        value = field["anyOf"][0]
        lists = {"style": "form", "explode": False} if value.get("type") == "array" else {}
        found.append({**parameter("query", name, value.pop("description"), **value), **lists})
    return found


ID = parameter("path", "id", minLength=1)
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


def image_paths() -> dict[str, Schema]:
    generation = {JSON_TYPE: reference(GenerationRequest)}
    edit = {FORM_TYPE: reference(EditRequest), JSON_TYPE: reference(JsonEditRequest)}
    model = call("Return a model.", ModelDocument, parameter("path", "model", minLength=1))
    return {
        "/v1/images/generations": {"post": image_call("Generate images from a prompt.", generation)},
        "/v1/images/edits": {"post": image_call("Generate images from an image.", edit)},
        "/v1/models": {"get": call("List the models.", ModelListDocument)},
        "/v1/models/{model}": {"get": model},
    }


def image_call(summary: str, body: Kinds) -> Schema:
    words = "the images; with `stream`, events while they are generated"
    document = call(summary, ImagesDocument, KEY_PARAMETER, words=words, body=body, errors=ALL_ERRORS)
    document["responses"]["200"]["content"][EVENTS] = {"schema": EVENT}
    return document


def job_paths() -> dict[str, Schema]:
    submit = call(
        "Generate images in a job, which continues without its client.",
        SubmittedJobDocument,
        KEY_PARAMETER,
        words="the accepted job",
        status=202,
        body={JSON_TYPE: reference(JobRequest), FORM_TYPE: reference(EditJobRequest)},
        errors=ALL_ERRORS,
    )
    events = call(
        "Stream the events of a job.",
        EVENT,
        ID,
        words="events until the job ends; `error` ends only the stream, as does disconnecting",
        kind=EVENTS,
        errors=ASKING_ERRORS | {499},
    )
    listed = call("List jobs, newest first.", JobListDocument, *query_parameters(JobsQuery))
    result = call("Return the images of a completed job.", ImagesDocument, ID, *query_parameters(ResultQuery))
    return {
        "/v1/jobs": {"post": submit, "get": listed},
        "/v1/jobs/{id}": {"get": call("Return a job with its progress.", JobDocument, ID)},
        "/v1/jobs/{id}/cancel": {"post": call("Cancel a job, and return it.", JobDocument, ID)},
        "/v1/jobs/{id}/result": {"get": result},
        "/v1/jobs/{id}/url": {"post": call("Create a URL of its image that expires.", JobUrlDocument, ID)},
        "/v1/jobs/{id}/events": {"get": events},
    }


def file_paths() -> dict[str, Schema]:
    """Return the path of files. Clients receive whole URLs, so the parameters are only described."""
    query = {
        "expires": "Unix seconds",
        "type": "media type",
        "size": "bytes",
        "digest": "SHA-256, in hexadecimal",
        "signature": "signature of all of these",
    }
    parameters = [parameter("query", name, words) for name, words in query.items()]
    get = call(
        "Return an image by its signed URL.",
        {"type": "string"},
        parameter("path", "key", minLength=1),
        *parameters,
        words="the image",
        kind="image/png",
        errors={403, 404, 500, 503},
    )
    for kind in ("image/jpeg", "image/webp"):
        get["responses"]["200"]["content"][kind] = {"schema": {"type": "string"}}
    return {"/v1/files/{key}": {"get": {**get, "security": [{}]}}}


def health_paths() -> dict[str, Schema]:
    health = call("Liveness: this process answers.", STATUS, errors={403})
    ready = call("Readiness: requests are accepted.", STATUS, errors={403})
    ready["responses"]["503"] = response("not ready", {JSON_TYPE: STATUS})
    return {"/health": {"get": health}, "/ready": {"get": ready}}
