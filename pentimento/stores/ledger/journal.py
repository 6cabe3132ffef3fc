"""The frontdoor's journal: what was accepted, how it is routed, who may finish it, what became of it."""

from concurrent.futures import Future
from typing import Protocol

from pentimento.domain.generation import Attempt
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger.records import AcceptedRequest, AcceptOutcome, RequestRecord, ResultRecord


class Journal(Protocol):
    """Every method returns at once; its future resolves after the commit that makes the answer durable.

    Futures fail with StoreFull or StoreUnavailable. After the latter the change may or may not be in; every method
    may be called again with the same arguments.
    """

    def claim_epoch(self, frontdoor_id: str) -> Future[int]:
        """An epoch larger than every one claimed before, by anybody."""

    def accept(self, record: AcceptedRequest) -> Future[AcceptOutcome]:
        """Make a request durable, or find the one that holds its (tenant, idempotency key)."""

    def record_route(self, request_id: str, route: bytes) -> Future[bytes]:
        """Pin the route of a request. The first route stays; the answer is the one in force."""

    def start_attempt(self, attempt: Attempt, worker_id: str) -> Future[bool]:
        """Add an attempt. False (and no change) when the request is terminal or unknown or the token is not newer."""

    def commit_result(self, attempt: Attempt, result: ResultRecord) -> Future[bool]:
        """Complete the request if `attempt` holds its newest token and it is not terminal; True when repeated."""

    def finish(self, request_id: str, state: RequestState, reason: str, message: str) -> Future[bool]:
        """End a request as FAILED, CANCELLED or EXPIRED. False when it was terminal already, or is unknown."""

    def get(self, request_id: str, tenant: str) -> Future[RequestRecord | None]:
        """None when there is no such request of that tenant."""

    def unfinished(self) -> Future[list[RequestRecord]]:
        """Every request that is not terminal, oldest first: what a frontdoor takes over when it starts."""

    def forget_finished(self, finished_before: float, limit_count: int) -> Future[list[RequestRecord]]:
        """Delete up to so many terminal requests; answers with them, so that their pictures can be deleted too."""

    def save_plan(self, plan: bytes) -> Future[None]:
        """Keep the plan in force, for a start without a controller."""

    def load_plan(self) -> Future[bytes | None]:
        """The plan last saved."""

    def close(self) -> None:
        """Commit what is queued and let go of the database."""
