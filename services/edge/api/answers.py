"""Answers as JSON documents, and their schemas in the API document. Pure.

`usage` counts in units of this suite: a text token is 4 bytes of the prompts in UTF-8, rounded up; an image token is
8 × 8 pixels, one position of a latent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal, NotRequired
from urllib.parse import urlencode

from pydantic import Field, WithJsonSchema
from typing_extensions import TypedDict

from pentimento.domain.generation import GenerationSpec
from pentimento.domain.image_request import (
    Accepted,
    Completed,
    ImageFailed,
    ImageFormat,
    ModelInfo,
    Progress,
    RequestStatus,
)
from pentimento.domain.jobs import RequestPage, RequestState, RequestSummary
from pentimento.domain.provenance_document import provenance_as_json
from services.edge.http.answers import Base64, error_document

BYTES_A_TEXT_TOKEN = 4
PIXELS_AN_IMAGE_TOKEN = 64
Size = Annotated[str, Field(pattern="^[0-9]+x[0-9]+$")]
State = Annotated[str, WithJsonSchema({"enum": [state.value for state in RequestState]})]
Seconds = Annotated[int | None, Field(description="Unix seconds; null before that")]


class UsageDocument(TypedDict):
    input_tokens: int
    input_tokens_details: NotRequired[dict[str, int]]
    output_tokens: int
    output_tokens_details: NotRequired[dict[str, int]]
    total_tokens: int


class ImageDocument(TypedDict):
    # A `Base64`.
    b64_json: NotRequired[Annotated[object, WithJsonSchema({"type": "string", "contentEncoding": "base64"})]]
    url: NotRequired[str]
    request_id: str
    image_index: NotRequired[int]
    seed: int
    provenance: NotRequired[dict[str, Any]]


class ImagesDocument(TypedDict):
    created: int
    background: NotRequired[Literal["opaque"]]
    data: list[ImageDocument]
    failed: NotRequired[list[dict[str, Any]]]
    output_format: Annotated[str, WithJsonSchema({"enum": [one.value for one in ImageFormat]})]
    quality: NotRequired[Annotated[str, WithJsonSchema({"enum": ["medium", "high"]})]]
    size: Size
    usage: UsageDocument


class ModelDocument(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    pentimento: NotRequired[dict[str, Any]]


class ModelListDocument(TypedDict):
    object: Literal["list"]
    data: list[ModelDocument]


class StepsDocument(TypedDict):
    step: int
    step_count: int


Steps = Annotated[
    StepsDocument | None, Field(description="finished steps; null before the first step and after the end")
]


class JobImageDocument(TypedDict):
    id: str
    status: State
    progress: Steps


class JobErrorDocument(TypedDict):
    code: str
    message: str


class DeliveryDocument(TypedDict):
    status: Annotated[str, WithJsonSchema({"enum": ["pending", "delivered", "failed"]})]
    tries: int
    error: str | None


class JobDocument(TypedDict):
    id: str
    object: Literal["job"]
    status: State
    created_at: int
    deadline_at: int
    finished_at: Seconds
    expires_at: Seconds
    size: NotRequired[Size | None]
    idempotency_key: NotRequired[str | None]
    group_id: NotRequired[
        Annotated[str | None, Field(description="the job of several images that this one belongs to")]
    ]
    progress: NotRequired[Steps]
    images: NotRequired[Annotated[list[JobImageDocument], Field(description="the images of a job with several")]]
    detached: NotRequired[Annotated[bool, Field(description="it continues without its client")]]
    error: JobErrorDocument | None
    webhook: NotRequired[DeliveryDocument]


class JobListDocument(TypedDict):
    object: Literal["list"]
    data: list[JobDocument]
    has_more: bool
    next: Annotated[str | None, Field(description="`after` of the following page")]


class SubmittedJobDocument(TypedDict):
    id: str
    object: Literal["job"]
    status: Literal["accepted"]
    replayed: Annotated[bool, Field(description="an earlier call had this key")]
    image_request_ids: NotRequired[list[str]]
    result: Annotated[str, Field(description="path of its images, in the requested format")]


class JobUrlDocument(TypedDict):
    url: str
    expires_at: int


def size_of(completed: Completed) -> str:
    """Return WIDTHxHEIGHT in pixels."""
    return f"{completed.width_px}x{completed.height_px}"


def quality_of(completed: Completed) -> str:
    provenance = completed.provenance
    return quality_word(provenance.steps_saved + len(provenance.route.thinned_steps))


def quality_word(saved_steps: int) -> str:
    """Return `high` if all steps ran, `medium` if some were reused or skipped."""
    return "medium" if saved_steps else "high"


def usage_of(completed: list[Completed]) -> UsageDocument:
    spec = completed[0].provenance.spec
    text = -(-len((spec.prompt + spec.negative_prompt).encode()) // BYTES_A_TEXT_TOKEN)
    images = len(completed) * pixel_tokens(spec)
    given = pixel_tokens(spec) if spec.init_image is not None else 0
    return {
        "input_tokens": text + given,
        "input_tokens_details": {"text_tokens": text, "image_tokens": given},
        "output_tokens": images,
        "output_tokens_details": {"text_tokens": 0, "image_tokens": images},
        "total_tokens": text + given + images,
    }


def pixel_tokens(spec: GenerationSpec) -> int:
    return -(-spec.width_px * spec.height_px // PIXELS_AN_IMAGE_TOKEN)


def image_document(completed: Completed, with_provenance: bool, url: str = "") -> ImageDocument:
    """Return one image of an answer, with its URL if it has one; `request_id` and `seed` identify it later."""
    document: ImageDocument = {
        "request_id": completed.request_id,
        "image_index": completed.image_index,
        "seed": completed.provenance.spec.seed,
    }
    if url:
        document["url"] = url
    else:
        document["b64_json"] = Base64(completed.image)
    if with_provenance:
        document["provenance"] = provenance_as_json(completed.provenance)
    return document


def images_document(
    completed: list[Completed],
    failed: list[ImageFailed],
    created_s: int,
    with_provenance: bool = False,
    urls: Sequence[str] = (),
) -> ImagesDocument:
    """Return a whole answer. `created_s` is a Unix time; `failed` has the failed ones of several images; `urls` has the
    URLs of the others, if requested."""
    document: ImagesDocument = {
        "created": created_s,
        "background": "opaque",
        "data": [
            image_document(one, with_provenance, urls[index] if urls else "") for index, one in enumerate(completed)
        ],
        "output_format": completed[0].format.value,
        "quality": quality_of(completed[0]),
        "size": size_of(completed[0]),
        "usage": usage_of(completed),
    }
    if failed:
        document["failed"] = [failure_document(one) for one in failed]
    return document


def failure_document(failed: ImageFailed) -> dict[str, Any]:
    """Return a failed image of several, with its error."""
    return {"request_id": failed.request_id, "image_index": failed.image_index, **error_document(failed.error)}


def model_documents(served: Sequence[ModelInfo], aliases: Mapping[str, str]) -> dict[str, ModelDocument]:
    """Return models in OpenAI's format by name.

    `pentimento` has a model's limits; for an alias, its `alias_of` names the model (empty: the suite's choice). Aliases
    of models that are not served are skipped."""
    known = {model.name: asdict(model) for model in served}
    documents = {name: model_document(name, limits) for name, limits in known.items()}
    for alias, name in aliases.items():
        if name in known or not name:
            documents[alias] = model_document(alias, {**known.get(name, {}), "alias_of": name})
    return documents


def model_document(name: str, limits: dict[str, Any]) -> ModelDocument:
    return {"id": name, "object": "model", "created": 0, "owned_by": "pentimento", "pentimento": limits}


def job_document(summary: RequestSummary, status: RequestStatus | None = None) -> JobDocument:
    """Return a job; times are Unix seconds, null before they are known. `status` adds `progress`, and `webhook` and
    `images` if it has them."""
    document: JobDocument = {
        "id": summary.request_id,
        "object": "job",
        "status": summary.state.value,
        "created_at": summary.accepted_at_ms // 1000,
        "deadline_at": summary.deadline_at_ms // 1000,
        "finished_at": seconds(summary.finished_at_ms),
        "expires_at": seconds(summary.kept_until_ms),
        "size": f"{summary.width_px}x{summary.height_px}" if summary.width_px else None,
        "idempotency_key": summary.idempotency_key or None,
        "group_id": summary.group_id or None,
        "detached": summary.job,
        "error": None,
    }
    if summary.error_reason:
        document["error"] = {"code": summary.error_reason, "message": summary.error_message}
    if status is None:
        return document
    document["progress"] = steps_document(status.progress)
    if status.images:
        document["images"] = [
            {"id": one.request_id, "status": one.state.value, "progress": steps_document(one.progress)}
            for one in status.images
        ]
    if (webhook := status.webhook) is not None:
        document["webhook"] = {
            "status": webhook.state.value,
            "tries": webhook.try_count,
            "error": webhook.error or None,
        }
    return document


def steps_document(progress: Progress | None) -> StepsDocument | None:
    """Return the finished steps and their total; None before the first step and after the end."""
    return None if progress is None else {"step": progress.step, "step_count": progress.step_count}


def seconds(at_ms: int | None) -> int | None:
    return None if at_ms is None else at_ms // 1000


def jobs_document(page: RequestPage) -> JobListDocument:
    """Return a page; `next` is the `after` of the following page."""
    data = [job_document(summary) for summary in page.requests]
    token = page.next_page_token or None
    return {"object": "list", "data": data, "has_more": token is not None, "next": token}


def accepted_document(accepted: Accepted) -> dict[str, Any]:
    ids = {"image_request_ids": list(accepted.image_request_ids)} if accepted.image_request_ids else {}
    return {"id": accepted.request_id, "object": "job", "status": "accepted", "replayed": accepted.replayed, **ids}


def result_path(job_id: str, as_urls: bool, with_provenance: bool) -> str:
    """Return the path of a job's images in the requested form."""
    words = {"response_format": "url"} if as_urls else {}
    if with_provenance:
        words["provenance"] = "true"
    query = f"?{urlencode(words)}" if words else ""
    return f"/v1/jobs/{job_id}/result{query}"
