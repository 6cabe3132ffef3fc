"""Test that a suite's remains are found, and that needed files are not counted."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.suite_remains import half_written, left_after_the_end, open_grants, orphan_objects
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.cache_ledger import open_cache_ledger
from pentimento.stores.objects.filesystem import FilesystemObjectStore
from pentimento.supervisor.state import StateDirectory


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateDirectory]:
    """Yield the state of a suite that never served a request."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    open_journal(f"sqlite:///{tmp_path}/frontdoor.sqlite").close()
    open_cache_ledger(f"sqlite:///{tmp_path}/gateway.sqlite").close()
    FilesystemObjectStore(tmp_path / "objects")
    made = StateDirectory(tmp_path)
    yield made
    # It is outside of the state directory, under a name that a later run's directory may reuse.
    shutil.rmtree(made.sockets, ignore_errors=True)


def execute(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


def test_orphan_objects_finds_object_without_row(state: StateDirectory) -> None:
    store = FilesystemObjectStore(state.path / "objects")
    for key in ("results/held", "results/lost", "cache/a/held", "cache/a/lost"):
        store.put(key, b"x")
    execute(
        state.path / "frontdoor.sqlite",
        """INSERT INTO journal_requests (request_id, tenant, body, body_hash, accepted_at, frontdoor_id,
            frontdoor_epoch, state, newest_token, newest_epoch, attempt_count, image_key, error_reason, error_message)
            VALUES ('r', 't', '', '', 0, '', 0, 'completed', 0, 0, 0, 'results/held', '', '')""",
    )
    execute(state.path / "gateway.sqlite", "INSERT INTO cache_objects (key, grant_id) VALUES ('cache/a/held', 'g')")

    assert sorted(orphan_objects(state)) == ["cache/a/lost", "results/lost"]


def test_open_grants_counts_uncommitted_grant(state: StateDirectory) -> None:
    for grant, entry in (("open", "NULL"), ("committed", "'e'")):
        execute(
            state.path / "gateway.sqlite",
            f"""INSERT INTO cache_grants (grant_id, pool, tenant, scope_digest, request_id, fencing_token,
                expires_at, entry_id) VALUES ('{grant}', '', '', '', '', 0, 0, {entry})""",
        )

    assert open_grants(state) == 1


def test_half_written_finds_unfinished_file(state: StateDirectory) -> None:
    (state.path / "objects" / "staging" / "upload").touch()

    assert half_written(state) == ["objects/staging/upload"]


def test_left_after_end_finds_socket(state: StateDirectory) -> None:
    state.sockets.mkdir()
    (state.sockets / "frontdoor.sock").touch()

    assert str(state.sockets / "frontdoor.sock") in list(left_after_the_end(state))
