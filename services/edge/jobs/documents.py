"""JSON documents and events of jobs, and the values of their queries. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from pentimento.domain.errors import Cancelled, DeadlineExceeded, FailedPrecondition, InvalidArgument, PentimentoError
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, ImageFailed, Progress, RequestStatus
from pentimento.domain.jobs import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, RequestPage, RequestQuery, RequestSummary
from pentimento.domain.requests import RequestState
from services.edge.http.documents import Base64
from services.edge.http.errors import error_document
from services.edge.images.answering import failure_document
from services.edge.images.events import sse
from services.edge.images.image_call import API_NAMES

STATES = {state.value: state for state in RequestState}
RESPONSE_FORMATS = ("b64_json", "url")
_LIMIT = re.compile("[1-9][0-9]{0,8}", re.ASCII)


def job_document(summary: RequestSummary, status: RequestStatus | None = None) -> dict[str, Any]:
    """Return a job; times are Unix seconds, null before they are known. `status` adds `progress`, and `webhook` and
    `images` if it has them."""
    document: dict[str, Any] = {
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
    if status is not None:
        document["progress"] = steps_document(status.progress)
    if status is not None and status.images:
        document["images"] = [
            {"id": one.request_id, "status": one.state.value, "progress": steps_document(one.progress)}
            for one in status.images
        ]
    if status is not None and status.webhook is not None:
        webhook = status.webhook
        document["webhook"] = {
            "status": webhook.state.value,
            "tries": webhook.try_count,
            "error": webhook.error or None,
        }
    return document


def steps_document(progress: Progress | None) -> dict[str, Any] | None:
    """Return the finished steps and their total; None before the first step and after the end."""
    return None if progress is None else {"step": progress.step, "step_count": progress.step_count}


def jobs_document(page: RequestPage) -> dict[str, Any]:
    """Return a page; `next` is the `after` of the following page."""
    data = [job_document(summary) for summary in page.requests]
    token = page.next_page_token or None
    return {"object": "list", "data": data, "has_more": token is not None, "next": token}


def submitted_document(accepted: Accepted, result: str = "") -> dict[str, Any]:
    """Return the answer to a submission; `result` is the path of its images."""
    document: dict[str, Any] = {
        "id": accepted.request_id,
        "object": "job",
        "status": RequestState.ACCEPTED.value,
        "replayed": accepted.replayed,
    }
    if result:
        document["result"] = result
    if accepted.image_request_ids:
        document["image_request_ids"] = list(accepted.image_request_ids)
    return document


def query_of(pairs: Iterable[tuple[str, str]]) -> RequestQuery:
    """Read a query for jobs. InvalidArgument names a wrong parameter."""
    given = single_values(pairs, ("limit", "after", "status", "jobs_only"))
    limit = given.get("limit", str(DEFAULT_PAGE_SIZE))
    if not _LIMIT.fullmatch(limit) or int(limit) > MAX_PAGE_SIZE:
        raise InvalidArgument.of("limit", f"must be a number from 1 to {MAX_PAGE_SIZE}")
    words = given["status"].split(",") if "status" in given else []
    if not set(words) <= set(STATES):
        raise InvalidArgument.of("status", f"must be some of {', '.join(STATES)}, separated by commas")
    states = frozenset(STATES[word] for word in words)
    return RequestQuery(states, truth(given, "jobs_only", True), int(limit), given.get("after", ""))


@dataclass(frozen=True)
class WantedResult:
    """The format of a job's result."""

    as_urls: bool = False
    provenance: bool = False

    def path(self, job_id: str) -> str:
        """Return the path of the result in this format."""
        words = {"response_format": "url"} if self.as_urls else {}
        if self.provenance:
            words["provenance"] = "true"
        query = f"?{urlencode(words)}" if words else ""
        return f"/v1/jobs/{job_id}/result{query}"


def wanted_result(pairs: Iterable[tuple[str, str]]) -> WantedResult:
    """Read a query for a result. InvalidArgument names a wrong parameter."""
    given = single_values(pairs, ("response_format", "provenance"))
    response_format = given.get("response_format", "b64_json")
    if response_format not in RESPONSE_FORMATS:
        raise InvalidArgument.of("response_format", f"must be one of {', '.join(RESPONSE_FORMATS)}")
    return WantedResult(response_format == "url", truth(given, "provenance", False))


def single_values(pairs: Iterable[tuple[str, str]], names: tuple[str, ...]) -> dict[str, str]:
    """Return the values of a query by name. InvalidArgument for unknown and repeated names."""
    given: dict[str, str] = {}
    for name, value in pairs:
        if name not in names:
            raise InvalidArgument.of("query", f"takes only {', '.join(names)}")
        if name in given:
            raise InvalidArgument.of(name, "must occur once")
        given[name] = value
    return given


def truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    """Return a parameter that is true or false."""
    value = given.get(name, str(default).lower())
    if value not in ("true", "false"):
        raise InvalidArgument.of(name, "must be true or false")
    return value == "true"


def event_of(event: GenerateEvent) -> bytes | None:
    """Return the bytes of an event for the listeners of a job; None for none."""
    if isinstance(event, Accepted):
        return sse("job.accepted", submitted_document(event))
    if isinstance(event, Progress):
        return sse("job.progress", progress_document(event))
    if isinstance(event, ImageFailed):
        return sse("job.image_failed", {"type": "job.image_failed", **failure_document(event)})
    if isinstance(event, Completed):
        document = {"type": "job.completed", "id": event.request_id, "image_index": event.image_index}
        return sse("job.completed", document)
    return None


def progress_document(event: Progress) -> dict[str, Any]:
    """Return the progress of an image; `preview` is a PNG in base64, null at most steps."""
    return {
        "type": "job.progress",
        "step": event.step,
        "step_count": event.step_count,
        "image_index": event.image_index,
        "preview": Base64(event.preview) if event.preview else None,
    }


def failed_event(error: PentimentoError) -> bytes:
    """Return the event that ends the stream of a failed job."""
    return sse("job.failed", {"type": "job.failed", **error_document(error, API_NAMES)})


def failure_of(status: RequestStatus) -> PentimentoError:
    """Return the error of a failed image of several."""
    classes = {RequestState.CANCELLED: Cancelled, RequestState.EXPIRED: DeadlineExceeded}
    error: type[PentimentoError] = classes.get(status.state, FailedPrecondition)
    return error(status.error_reason, status.error_message)


def seconds(at_ms: int | None) -> int | None:
    return None if at_ms is None else at_ms // 1000
