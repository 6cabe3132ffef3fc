"""Jobs as HTTP clients read them, and what their queries say. Pure."""

from collections.abc import Mapping
from typing import Any

from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, PictureFailed, Progress, RequestStatus
from pentimento.domain.jobs import DEFAULT_PAGE_SIZE, RequestPage, RequestQuery, RequestSummary
from pentimento.domain.requests import RequestState
from services.edge.http.errors import error_document
from services.edge.images.answering import encoded, failure_document
from services.edge.images.asking import API_NAMES
from services.edge.images.events import sse

STATES = {state.value: state for state in RequestState}
QUERY_NAMES = frozenset({"limit", "after", "status", "jobs_only"})
_MAX_LIMIT_DIGITS = 9


def job_document(summary: RequestSummary, status: RequestStatus | None = None) -> dict[str, Any]:
    """Return a job; times are Unix seconds, null where there is none yet. `webhook` is there where `status` has one."""
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
        "detached": summary.job,
        "error": None,
    }
    if summary.error_reason:
        document["error"] = {"code": summary.error_reason, "message": summary.error_message}
    if status is not None and status.webhook is not None:
        webhook = status.webhook
        document["webhook"] = {
            "status": webhook.state.value,
            "tries": webhook.try_count,
            "error": webhook.error or None,
        }
    return document


def jobs_document(page: RequestPage) -> dict[str, Any]:
    """Return a page; `last_id` is what `after` takes for the next one."""
    data = [job_document(summary) for summary in page.requests]
    token = page.next_page_token or None
    return {"object": "list", "data": data, "has_more": token is not None, "next": token}


def submitted_document(accepted: Accepted) -> dict[str, Any]:
    """Return what a submission is answered with."""
    document: dict[str, Any] = {
        "id": accepted.request_id,
        "object": "job",
        "status": RequestState.ACCEPTED.value,
        "replayed": accepted.replayed,
    }
    if accepted.image_request_ids:
        document["image_request_ids"] = list(accepted.image_request_ids)
    return document


def query_of(given: Mapping[str, str]) -> RequestQuery:
    """Return the query that an address asks. Raises InvalidArgument naming the parameter."""
    for name in given:
        if name not in QUERY_NAMES:
            raise InvalidArgument.of("query", "takes limit, after, status and jobs_only alone")
    limit = given.get("limit", str(DEFAULT_PAGE_SIZE))
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= _MAX_LIMIT_DIGITS and int(limit)):
        raise InvalidArgument.of("limit", "must be a number above 0")
    words = given["status"].split(",") if "status" in given else []
    if not set(words) <= set(STATES):
        raise InvalidArgument.of("status", f"must be of {', '.join(STATES)}, with commas between them")
    jobs_only = given.get("jobs_only", "true")
    if jobs_only not in ("true", "false"):
        raise InvalidArgument.of("jobs_only", "must be true or false")
    states = frozenset(STATES[word] for word in words)
    return RequestQuery(states, jobs_only == "true", int(limit), given.get("after", ""))


def webhook_url_of(given: Any) -> str:
    """Return the address of a submission's webhook, "" without one. Raises InvalidArgument."""
    if given is None:
        return ""
    if not isinstance(given, dict) or set(given) != {"url"} or not isinstance(given["url"], str) or not given["url"]:
        raise InvalidArgument.of("webhook", 'must be {"url": "https://…"}')
    url: str = given["url"]
    return url


def event_of(event: GenerateEvent) -> bytes | None:
    """Return what whoever listens to a job is told of an event; None for nothing."""
    if isinstance(event, Accepted):
        return sse("job.accepted", submitted_document(event))
    if isinstance(event, Progress):
        return sse("job.progress", progress_document(event))
    if isinstance(event, PictureFailed):
        return sse("job.image_failed", {"type": "job.image_failed", **failure_document(event)})
    if isinstance(event, Completed):
        told = {"type": "job.completed", "id": event.request_id, "image_index": event.image_index}
        return sse("job.completed", told)
    return None


def progress_document(event: Progress) -> dict[str, Any]:
    """Return how far a picture is; `preview` is a PNG in base64, null on most steps."""
    return {
        "type": "job.progress",
        "step": event.step,
        "step_count": event.step_count,
        "image_index": event.image_index,
        "preview": encoded(event.preview) if event.preview else None,
    }


def failed_event(error: PentimentoError) -> bytes:
    """Return the event that ends the stream of a job that has no picture."""
    return sse("job.failed", {"type": "job.failed", **error_document(error, API_NAMES)})


def seconds(at_ms: int | None) -> int | None:
    return None if at_ms is None else at_ms // 1000
