"""The states of a request. Mirrors pentimento.api.image.v1.RequestState."""

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
