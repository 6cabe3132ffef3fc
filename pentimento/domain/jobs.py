"""States of requests, requests that run without their clients, and lists of a tenant's requests. Mirrors
pentimento.api.image.v1. Times are milliseconds since 1970."""

from dataclasses import dataclass
from enum import Enum


class RequestState(Enum):
    """The first three are active, the other four terminal: a request reaches exactly one terminal state."""

    ACCEPTED = "accepted"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL = frozenset({RequestState.COMPLETED, RequestState.FAILED, RequestState.CANCELLED, RequestState.EXPIRED})


DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 200


@dataclass(frozen=True)
class RequestSummary:
    """A request as lists show it. `job`: it runs without listeners. `finished_at_ms` and `kept_until_ms` are None
    until it has ended; sizes are pixels of its image, 0 without one. `group_id`: for one of several images the id
    under which they were accepted together."""

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
    """Filter for a tenant's requests: `states`, none for all. `page_size` 0: the usual size."""

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
    """The server of a deployment's image addresses. NONE: the deployment gives no addresses."""

    NONE = "none"
    STORE = "store"
    EDGE = "edge"


@dataclass(frozen=True)
class ResultUrl:
    """A public address of an image, until it expires; a path where an HTTP edge serves it."""

    url: str
    expires_at_ms: int


class WebhookState(Enum):
    """How far the telling of a job's end has come."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True)
class WebhookDelivery:
    """State of a job's webhook; `error` says why the last try failed."""

    state: WebhookState
    try_count: int = 0
    error: str = ""
