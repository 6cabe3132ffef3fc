"""What tests write into journals."""

from dataclasses import replace

from pentimento.domain.generation import Attempt, ObjectReference
from pentimento.stores.ledger.records import (
    AcceptedRequest,
    ResultRecord,
)

NOW_S = 1_800_000_000.0
NOW_MS = 1_800_000_000_000


def request(request_id: str = "r1", **changes: object) -> AcceptedRequest:
    record = AcceptedRequest(request_id, "tenant", b"\x00body", "hash", accepted_at=100.5, deadline_at=160.25)
    return replace(record, **changes)  # type: ignore[arg-type]


def attempt(token: int, request_id: str = "r1", epoch: int = 1, number: int = 1) -> Attempt:
    return Attempt(request_id, number, token, "frontdoor-1", epoch, "tenant")


def result(content: str = "a") -> ResultRecord:
    image = ObjectReference(f"results/{content}", f"sha256:{content}", 3)
    return ResultRecord(image, "png", 64, 48, b"\x00provenance", completed_at=105.0)
