"""Requests that go on without their clients, and how a tenant finds its requests again. Transport-neutral: mirrors
pentimento.api.image.v1. Times are milliseconds since 1970."""

from dataclasses import dataclass
from enum import Enum

from pentimento.domain.requests import RequestState

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 200


@dataclass(frozen=True)
class RequestSummary:
    """A request as lists show it. `job`: it goes on without listeners. `finished_at_ms` and `kept_until_ms` are None
    until it has ended; sizes are pixels of its picture, 0 where there is none. `group_id`: of one of several pictures
    the id under which they were accepted together."""

    request_id: str
    state: RequestState
    job: bool
    idempotency_key: str
    accepted_at_ms: int
    deadline_at_ms: int
    finished_at_ms: int | None = None
    kept_until_ms: int | None = None
    width_px: int = 0
    height_px: int = 0
    error_reason: str = ""
    error_message: str = ""
    group_id: str = ""


@dataclass(frozen=True)
class RequestQuery:
    """Which of a tenant's requests are asked for: those of `states`, none for all. `page_size` 0: the usual one."""

    states: frozenset[RequestState] = frozenset()
    jobs_only: bool = False
    page_size: int = 0
    page_token: str = ""


@dataclass(frozen=True)
class RequestPage:
    """Newest first; `next_page_token` is "" on the last page."""

    requests: tuple[RequestSummary, ...]
    next_page_token: str = ""


class ResultUrlServer(Enum):
    """Who serves the addresses that a deployment gives of its pictures: nobody where it gives none."""

    NONE = "none"
    STORE = "store"
    EDGE = "edge"


@dataclass(frozen=True)
class ResultUrl:
    """Where a picture may be read by anybody until then; a path where an HTTP edge serves it."""

    url: str
    expires_at_ms: int


class WebhookState(Enum):
    """How far the telling of a job's end has come."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True)
class WebhookDelivery:
    """What became of a job's webhook; `error` says why the last try failed."""

    state: WebhookState
    try_count: int = 0
    error: str = ""
