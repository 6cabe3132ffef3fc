"""When every request would be rejected, and until when."""

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import Unavailable
from pentimento.stores.errors import StoreFull, StoreUnavailable
from services.frontdoor.requests.acceptance import RETRY_S, Acceptance

FULL = StoreFull("ledger", "no room")
AWAY = StoreUnavailable("ledger", "disk I/O error")


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def acceptance(clock: SetClock) -> Acceptance:
    return Acceptance(clock)


def test_acceptance_counts_rejections_by_reason(acceptance: Acceptance) -> None:
    acceptance.reject("QUEUE_FULL")
    acceptance.reject("QUOTA_EXCEEDED", 3)
    acceptance.fail(FULL)

    assert acceptance.rejected_count == 5
    assert dict(acceptance.rejections) == {"QUEUE_FULL": 1, "QUOTA_EXCEEDED": 3, "STORE_FULL": 1}


@pytest.mark.parametrize(
    ("error", "blocked"),
    [
        (FULL, "STORE_FULL: ledger is full: no room"),
        (AWAY, "STORE_UNAVAILABLE: ledger cannot be reached: disk I/O error"),
    ],
)
def test_acceptance_failed_journal_blocks_until_retry(
    error: StoreFull | StoreUnavailable, blocked: str, acceptance: Acceptance, clock: SetClock
) -> None:
    acceptance.fail(error)
    before = acceptance.blocked
    clock.monotonic_s += RETRY_S

    assert (before, acceptance.blocked) == (blocked, "")


def test_acceptance_accepted_request_ends_block(acceptance: Acceptance) -> None:
    acceptance.fail(FULL)
    acceptance.accept()

    assert acceptance.blocked == ""


def test_acceptance_other_errors_of_one_request_block_nobody(acceptance: Acceptance) -> None:
    acceptance.reject("QUOTA_EXCEEDED")
    acceptance.fail(Unavailable("TIMEOUT", "slow"))

    assert acceptance.blocked == ""


def test_acceptance_disk_and_beats_block_as_long_as_they_last(acceptance: Acceptance, clock: SetClock) -> None:
    acceptance.see_disk(FULL)
    full = acceptance.blocked
    acceptance.see_disk(None)
    acceptance.hear_beat(AWAY)
    clock.monotonic_s += 10 * RETRY_S
    away = acceptance.blocked
    acceptance.hear_beat(None)

    assert (full[:10], away[:17], acceptance.blocked) == ("STORE_FULL", "STORE_UNAVAILABLE", "")
