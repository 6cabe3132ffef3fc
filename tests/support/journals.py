"""Journals on SQLite, and what tests write into them."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pentimento.domain.clock import Clock
from pentimento.domain.generation import ObjectReference
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.journal.records import AcceptedRequest, ResultRecord
from tests.support.values import an_attempt


@contextmanager
def a_journal(directory: Path, clock: Clock | None = None) -> Iterator[Journal]:
    """Open the journal in a directory, by the machine's clock if none is given, and close it at the end."""
    with closing(open_journal(f"sqlite:///{directory}/journal.sqlite", clock)) as journal:
        yield journal


def an_accepted_request(request_id: str = "r1", **changes: Any) -> AcceptedRequest:
    """Return what a frontdoor journals of a request of the tenant "tenant"."""
    return replace(AcceptedRequest(request_id, "tenant", b"\x00body", "hash", accepted_at=100.5), **changes)


def a_result(name: str = "a", **changes: Any) -> ResultRecord:
    """Return the record of an image of 3 bytes under results/<name>."""
    image = ObjectReference(f"results/{name}", f"sha256:{name}", 3)
    return replace(ResultRecord(image, "png", 64, 48, b"\x00provenance", completed_at=105.0), **changes)


def complete_request(
    journal: Journal, request_id: str, at: float, size_bytes: int = 10, tenant: str = "tenant"
) -> "Future[bool]":
    """Accept a request, start its only attempt and commit an image of `size_bytes` at the time `at`."""
    attempt = an_attempt(request_id, tenant=tenant)
    image = ObjectReference(f"results/{request_id}", f"sha256:{request_id}", size_bytes)
    journal.accept(an_accepted_request(request_id, tenant=tenant, accepted_at=0.0))
    journal.start_attempt(attempt, "w1")
    return journal.commit_result(attempt, a_result(image=image, completed_at=at))
