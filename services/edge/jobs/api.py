"""`/v1/jobs` in the API document. Pure."""

from pentimento.domain.jobs import MAX_PAGE_SIZE
from services.edge.api_operations import (
    ALL_ERRORS,
    ASKING_ERRORS,
    EVENT,
    EVENTS,
    JSON,
    KEY_PARAMETER,
    content,
    error_responses,
    get_call,
    path_parameter,
    query_parameter,
)
from services.edge.api_schemas import Schema, edit_schema, object_schema, reference
from services.edge.images.fields import JSON_EDIT_FIELDS
from services.edge.jobs.documents import RESPONSE_FORMATS, STATES
from services.edge.jobs.submission import FORM_TYPE

ID = path_parameter("id")
STATUS = {"enum": list(STATES)}
SECONDS = {"type": ["integer", "null"], "description": "Unix seconds; null before that"}
WEBHOOK = {
    "type": "object",
    "properties": {
        "url": {"type": "string", "minLength": 1, "description": "URL of a host that the deployment allows"}
    },
    "required": ["url"],
    "additionalProperties": False,
}
PROGRESS = {
    "type": ["object", "null"],
    "description": "finished steps; null before the first step and after the end",
    "properties": {"step": {"type": "integer"}, "step_count": {"type": "integer"}},
    "required": ["step", "step_count"],
}
JOB = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "job"},
        "status": STATUS,
        "created_at": {"type": "integer"},
        "deadline_at": {"type": "integer"},
        "finished_at": SECONDS,
        "expires_at": SECONDS,
        "size": {"type": ["string", "null"], "pattern": "^[0-9]+x[0-9]+$"},
        "idempotency_key": {"type": ["string", "null"]},
        "group_id": {"type": ["string", "null"], "description": "the job of several images that this one belongs to"},
        "progress": PROGRESS,
        "images": {
            "type": "array",
            "description": "the images of a job with several",
            "items": {
                "type": "object",
                "properties": {"id": {"type": "string"}, "status": STATUS, "progress": PROGRESS},
                "required": ["id", "status", "progress"],
            },
        },
        "detached": {"type": "boolean", "description": "it continues without its client"},
        "error": {
            "type": ["object", "null"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            "required": ["code", "message"],
        },
        "webhook": {
            "type": "object",
            "properties": {
                "status": {"enum": ["pending", "delivered", "failed"]},
                "tries": {"type": "integer"},
                "error": {"type": ["string", "null"]},
            },
            "required": ["status", "tries", "error"],
        },
    },
    "required": ["id", "object", "status", "created_at", "deadline_at", "finished_at", "expires_at", "error"],
}


def of_job(schema: Schema) -> Schema:
    """Turn the schema of a call into that of a submission: without streaming, with a webhook."""
    del schema["properties"]["partial_images"]
    unstreamed = {"const": False, "description": "use /v1/jobs/{id}/events"}
    schema["properties"]["stream"] = {"anyOf": [unstreamed, {"type": "null"}]}
    schema["properties"]["webhook"] = {
        "anyOf": [WEBHOOK, {"type": "null"}],
        "description": "called once the job has ended",
    }
    return schema


JOB_SCHEMAS = {
    "JobRequest": of_job(object_schema(JSON_EDIT_FIELDS)),
    "EditJobRequest": of_job(edit_schema()),
    "Job": JOB,
    "JobList": {
        "type": "object",
        "properties": {
            "object": {"const": "list"},
            "data": {"type": "array", "items": reference("Job")},
            "has_more": {"type": "boolean"},
            "next": {"type": ["string", "null"], "description": "`after` of the following page"},
        },
        "required": ["object", "data", "has_more", "next"],
    },
    "SubmittedJob": {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "object": {"const": "job"},
            "status": {"const": "accepted"},
            "replayed": {"type": "boolean", "description": "an earlier call had this key"},
            "image_request_ids": {"type": "array", "items": {"type": "string"}},
            "result": {"type": "string", "description": "path of its images, in the requested format"},
        },
        "required": ["id", "object", "status", "replayed", "result"],
    },
    "JobUrl": {
        "type": "object",
        "properties": {"url": {"type": "string"}, "expires_at": {"type": "integer"}},
        "required": ["url", "expires_at"],
    },
}


def job_paths() -> dict[str, Schema]:
    """Return the paths of jobs."""
    return {
        "/v1/jobs": {"post": submit_call(), "get": list_call()},
        "/v1/jobs/{id}": {"get": {**get_call("Return a job with its progress.", reference("Job")), "parameters": [ID]}},
        "/v1/jobs/{id}/cancel": {"post": post_call("Cancel a job, and return it.", reference("Job"))},
        "/v1/jobs/{id}/result": {"get": result_call()},
        "/v1/jobs/{id}/url": {"post": post_call("Create a URL of its image that expires.", reference("JobUrl"))},
        "/v1/jobs/{id}/events": {"get": events_call()},
    }


def submit_call() -> Schema:
    """Return the operation that submits a job."""
    return {
        "summary": "Generate images in a job, which continues without its client.",
        "parameters": [KEY_PARAMETER],
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": reference("JobRequest")},
                FORM_TYPE: {"schema": reference("EditJobRequest")},
            },
        },
        "responses": {
            "202": content(reference("SubmittedJob"), "the accepted job"),
            **error_responses(ALL_ERRORS),
        },
    }


def list_call() -> Schema:
    """Return the operation that lists jobs."""
    states = query_parameter("status", "only these states, separated by commas", type="array", items=STATUS, minItems=1)
    parameters = [
        query_parameter("limit", "jobs per page", type="integer", minimum=1, maximum=MAX_PAGE_SIZE),
        query_parameter("after", "`next` of the previous page", type="string"),
        {**states, "style": "form", "explode": False},
        query_parameter("jobs_only", "false: also requests with a waiting client", type="boolean", default=True),
    ]
    return {**get_call("List jobs, newest first.", reference("JobList")), "parameters": parameters}


def result_call() -> Schema:
    """Return the operation that returns the images of a job."""
    parameters = [
        ID,
        query_parameter("response_format", "encoding of the images", enum=list(RESPONSE_FORMATS), default="b64_json"),
        query_parameter("provenance", "add the provenance of each image", type="boolean", default=False),
    ]
    return {**get_call("Return the images of a completed job.", reference("Images")), "parameters": parameters}


def events_call() -> Schema:
    """Return the operation that streams the events of a job."""
    stream = content(EVENT, "events until the job ends; `error` ends only the stream, as does disconnecting", EVENTS)
    return {
        "summary": "Stream the events of a job.",
        "parameters": [ID],
        "responses": {"200": stream, **error_responses(ASKING_ERRORS | {499})},
    }


def post_call(summary: str, answer: Schema) -> Schema:
    """Return an operation on a job without a body."""
    return {
        "summary": summary,
        "parameters": [ID],
        "responses": {"200": content(answer, "the present state"), **error_responses(ASKING_ERRORS)},
    }
