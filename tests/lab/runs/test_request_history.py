"""Which histories of an idempotency key are possible."""

from dataclasses import replace

import pytest

from lab.runs.histories import Operation
from lab.runs.request_history import JournalEvent, broken_keys

ACCEPT = JournalEvent("key", "r1", "accept", "r1", 1.0)
START = JournalEvent("key", "r1", "start", 7, 2.0)
AGAIN = JournalEvent("key", "r1", "start", 9, 3.0)
COMMIT = JournalEvent("key", "r1", "commit", (7, "sha256:a"), 4.0)
CANCELLED = JournalEvent("key", "r1", "end", "cancelled", 4.0)
READ_AT_S = 10.0
TOLD = Operation("accepted", "r1", 0.5, 1.5)
RESULT = Operation("result", "sha256:a", 1.6, 4.5)


@pytest.mark.parametrize(
    ("events", "received", "possible"),
    [
        pytest.param([ACCEPT, START, COMMIT], [TOLD, RESULT], True, id="one image"),
        pytest.param([], [], True, id="nothing"),
        pytest.param([], [TOLD], False, id="accepted and not durable"),
        pytest.param([ACCEPT], [Operation("accepted", "r1", 0.5, 0.9)], False, id="accepted before it was durable"),
        pytest.param([ACCEPT], [Operation("accepted", "r2", 0.5, 1.5)], False, id="accepted as another request"),
        pytest.param(
            [ACCEPT, JournalEvent("key", "r2", "accept", "r2", 1.5)], [], False, id="two requests under a key"
        ),
        pytest.param([START], [], False, id="started and not accepted"),
        pytest.param([ACCEPT, COMMIT], [], False, id="committed without an attempt"),
        pytest.param([ACCEPT, START, AGAIN, COMMIT], [], False, id="committed by an attempt before the newest"),
        pytest.param([ACCEPT, AGAIN, replace(START, at_s=4.0)], [], False, id="tokens that fall"),
        pytest.param([ACCEPT, START, COMMIT, COMMIT], [], False, id="committed twice"),
        pytest.param([ACCEPT, START, COMMIT, CANCELLED], [], False, id="completed and cancelled"),
        pytest.param([ACCEPT, CANCELLED, replace(START, at_s=5.0)], [], False, id="started after the end"),
        pytest.param(
            [ACCEPT, START, COMMIT], [Operation("result", "sha256:a", 1.6, 3.9)], False, id="image before its commit"
        ),
        pytest.param(
            [ACCEPT, START, COMMIT], [Operation("result", "sha256:b", 1.6, 4.5)], False, id="image of another digest"
        ),
        pytest.param([ACCEPT, CANCELLED], [RESULT], False, id="image of a cancelled request"),
        pytest.param([ACCEPT, CANCELLED], [Operation("state", "cancelled", 2.0, 5.0)], True, id="cancelled"),
        pytest.param([ACCEPT], [Operation("state", "running", 2.0, 5.0)], True, id="runs"),
        pytest.param(
            [ACCEPT, START, COMMIT], [RESULT, Operation("state", "running", 5.0, 5.1)], False, id="runs after its image"
        ),
        pytest.param(
            [ACCEPT, START, COMMIT], [RESULT, Operation("state", "cancelled", 5.0, 5.1)], False, id="cancelled later"
        ),
        pytest.param(
            [ACCEPT, START, COMMIT], [RESULT, Operation("state", "completed", 2.0, 2.1)], False, id="completed early"
        ),
    ],
)
def test_history_of_a_key_is_linearisable_or_not(
    events: list[JournalEvent], received: list[Operation], possible: bool
) -> None:
    assert broken_keys(events, READ_AT_S, {"key": received}) == ([] if possible else ["key"])


def test_keys_are_checked_separately() -> None:
    other = [JournalEvent("other", "r2", "accept", "r2", 0.1), JournalEvent("other", "r2", "commit", (3, "x"), 0.2)]

    assert broken_keys([ACCEPT, START, COMMIT, *other], READ_AT_S, {"key": [TOLD, RESULT]}) == ["other"]


def test_changes_at_the_same_millisecond_are_no_contradiction() -> None:
    events = [ACCEPT, JournalEvent("key", "r1", "start", 7, 1.0), JournalEvent("key", "r1", "commit", (7, "a"), 1.0)]

    assert broken_keys(events, READ_AT_S, {}) == []
