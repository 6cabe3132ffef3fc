"""`/openapi.json`: the API document (OpenAPI 3.1), generated from the table of fields that validates requests."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from services.edge.api_operations import JSON, STATUS, get_call, image_operation, path_parameter
from services.edge.api_schemas import (
    ERROR,
    IMAGES,
    MODEL_LIST,
    MODEL_SCHEMA,
    Schema,
    edit_schema,
    json_edit_schema,
    object_schema,
    reference,
)
from services.edge.files_document import file_paths
from services.edge.images.fields import GENERATION_FIELDS
from services.edge.jobs.api import JOB_SCHEMAS, job_paths

FORM = "multipart/form-data"
TITLE = "Pentimento"
VERSION = "1"


def document_routes(serves_files: bool) -> list[BaseRoute]:
    """Return the route of the document. `serves_files`: this process answers `/v1/files/`."""
    document = api_document(serves_files)

    async def openapi(request: Request) -> Response:
        """Return the document."""
        return JSONResponse(document)

    return [Route("/openapi.json", openapi)]


def api_document(serves_files: bool = True) -> Schema:
    """Return the whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": TITLE,
            "version": VERSION,
            "description": "Images from prompts, compatible with OpenAI's images API. Errors have OpenAI's format.",
        },
        "security": [{}, {"token": []}],
        "paths": {
            **image_paths(),
            **job_paths(),
            **(file_paths() if serves_files else {}),
            "/health": {"get": get_call("Liveness: this process answers.", STATUS, suite=False)},
            "/ready": {"get": get_call("Readiness: requests are accepted.", STATUS, suite=False, more={"503": STATUS})},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "GenerationRequest": object_schema(GENERATION_FIELDS),
                "EditRequest": edit_schema(),
                "JsonEditRequest": json_edit_schema(),
                "Images": IMAGES,
                "Model": MODEL_SCHEMA,
                "ModelList": MODEL_LIST,
                "Error": ERROR,
                **JOB_SCHEMAS,
            },
        },
    }


def image_paths() -> dict[str, Schema]:
    """Return the paths of images and models."""
    generation = {JSON: reference("GenerationRequest")}
    edit = {FORM: reference("EditRequest"), JSON: reference("JsonEditRequest")}
    model = get_call("Return a model.", reference("Model"))
    return {
        "/v1/images/generations": {"post": image_operation("Generate images from a prompt.", generation)},
        "/v1/images/edits": {"post": image_operation("Generate images from an image.", edit)},
        "/v1/models": {"get": get_call("List the models.", reference("ModelList"))},
        "/v1/models/{model}": {"get": {**model, "parameters": [path_parameter("model")]}},
    }
