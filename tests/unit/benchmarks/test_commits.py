"""Test that every second commit of a result is counted, by any writer and with any content."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.commits import commits_by_request, count_commits
from pentimento.domain.generation import Attempt, ObjectReference
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.records import AcceptedRequest, ResultRecord

ATTEMPT = Attempt("r1", 1, 7, "frontdoor-1", 1, "tenant")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "frontdoor.sqlite"


@pytest.fixture
def journal(file: Path) -> Iterator[Journal]:
    """Yield a journal with one request, its only attempt running, and its commits counted."""
    journal = open_journal(f"sqlite:///{file}")
    count_commits(file)
    journal.accept(AcceptedRequest("r1", "tenant", b"body", "hash", accepted_at=100.5)).result()
    journal.start_attempt(ATTEMPT, "worker").result()
    yield journal
    journal.close()


def result(content: str = "a") -> ResultRecord:
    return ResultRecord(ObjectReference(f"results/{content}", "sha256:a", 3), "png", 8, 8, b"", completed_at=105.0)


def test_commits_before_result_are_none(journal: Journal, file: Path) -> None:
    assert commits_by_request(file)["r1"] == 0


def test_commits_of_result_are_one(journal: Journal, file: Path) -> None:
    journal.commit_result(ATTEMPT, result()).result()

    assert commits_by_request(file)["r1"] == 1


def test_commits_of_other_endings_are_none(journal: Journal, file: Path) -> None:
    journal.finish("r1", RequestState.CANCELLED, "CANCELLED", "").result()

    assert commits_by_request(file)["r1"] == 0


def test_commits_count_same_image_twice(journal: Journal, file: Path) -> None:
    journal.commit_result(ATTEMPT, result()).result()

    journal.commit_result(ATTEMPT, result("b")).result()

    assert commits_by_request(file)["r1"] == 2


def test_commits_count_unchanged_state(journal: Journal, file: Path) -> None:
    journal.commit_result(ATTEMPT, result()).result()

    with closing(sqlite3.connect(file)) as other, other:
        other.execute("UPDATE journal_requests SET image_digest = 'sha256:b'")

    assert commits_by_request(file)["r1"] == 2


def test_commits_ignore_removed_image(journal: Journal, file: Path) -> None:
    journal.commit_result(ATTEMPT, result()).result()

    with closing(sqlite3.connect(file)) as other, other:
        other.execute("UPDATE journal_requests SET image_key = ''")

    assert commits_by_request(file)["r1"] == 1


def test_commits_survive_frontdoor_restarts(journal: Journal, file: Path) -> None:
    journal.commit_result(ATTEMPT, result()).result()
    journal.close()
    count_commits(file)

    restarted = open_journal(f"sqlite:///{file}")
    restarted.commit_result(ATTEMPT, result()).result()
    restarted.close()

    assert commits_by_request(file)["r1"] == 2
