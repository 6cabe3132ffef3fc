"""Test how benchmarks of faults count: commits of a result, lost and changed requests, a suite's remains, memory."""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks.hostile import MIB, Played, figures_of, kept_after_rest
from benchmarks.suites.faulted_load import Sample
from benchmarks.suites.journal_events import commits_by_request, events_of, record_events
from benchmarks.suites.processes import half_written, left_after_the_end, open_grants, orphan_objects
from pentimento.domain.generation import Attempt, ObjectReference
from pentimento.domain.jobs import RequestState
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.cache.ledger import open_cache_ledger
from pentimento.stores.ledger.journal.records import AcceptedRequest, ResultRecord
from pentimento.stores.objects.filesystem import FilesystemObjectStore
from pentimento.supervisor.state import StateDirectory

ATTEMPT = Attempt("r1", 1, 7, "frontdoor-1", 1, "tenant")


def execute(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


# Commits


def commit(journal: Journal, file: Path) -> None:
    reference = ObjectReference("results/a", "sha256:a", 3)
    journal.commit_result(ATTEMPT, ResultRecord(reference, "png", 8, 8, b"", completed_at=105.0)).result()


def cancel(journal: Journal, file: Path) -> None:
    journal.finish("r1", RequestState.CANCELLED, "CANCELLED", "").result()


def change_key(journal: Journal, file: Path) -> None:
    execute(file, "UPDATE journal_requests SET image_key = 'results/b'")


def change_digest(journal: Journal, file: Path) -> None:
    execute(file, "UPDATE journal_requests SET image_digest = 'sha256:b'")


def remove_image(journal: Journal, file: Path) -> None:
    execute(file, "UPDATE journal_requests SET image_key = ''")


def restart_and_change_key(journal: Journal, file: Path) -> None:
    journal.close()
    record_events(f"sqlite:///{file}")
    open_journal(f"sqlite:///{file}").close()
    change_key(journal, file)


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        pytest.param([], 0, id="running"),
        pytest.param([commit], 1, id="one"),
        pytest.param([cancel], 0, id="another ending"),
        pytest.param([commit, change_key], 2, id="twice"),
        pytest.param([commit, change_digest], 2, id="an unchanged state"),
        pytest.param([commit, remove_image], 1, id="a removed image"),
        pytest.param([commit, commit], 1, id="repeated"),
        pytest.param([commit, restart_and_change_key], 2, id="after a restart"),
    ],
)
def test_commits_count_every_result(tmp_path: Path, steps: list[Callable[[Journal, Path], None]], count: int) -> None:
    file = tmp_path / "frontdoor.sqlite"
    with closing(open_journal(f"sqlite:///{file}")) as journal:
        record_events(f"sqlite:///{file}")
        journal.accept(AcceptedRequest("r1", "tenant", b"body", "hash", accepted_at=100.5)).result()
        journal.start_attempt(ATTEMPT, "worker").result()

        for step in steps:
            step(journal, file)

        assert commits_by_request(f"sqlite:///{file}")["r1"] == count


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/journal.sqlite"
    url: str = request.getfixturevalue("postgresql").new_database()
    return url


def test_events_follow_journal_in_order(ledger_url: str) -> None:
    with closing(open_journal(ledger_url)) as journal:
        record_events(ledger_url)
        for request_id in ("r1", "r2"):
            accepted = AcceptedRequest(
                request_id, "tenant", b"body", "hash", 100.5, idempotency_key=f"key-{request_id}"
            )
            journal.accept(accepted).result()
            journal.accept(accepted).result()
        journal.start_attempt(ATTEMPT, "worker").result()
        for _ in range(2):
            commit(journal, Path())
        cancelled = [journal.finish(name, RequestState.CANCELLED, "CANCELLED", "").result() for name in ("r1", "r2")]

    events, read_at_s = events_of(ledger_url)

    assert cancelled == [False, True]
    assert [(event.key, event.name, event.value) for event in events] == [
        ("key-r1", "accept", "r1"),
        ("key-r2", "accept", "r2"),
        ("key-r1", "start", 7),
        ("key-r1", "commit", (7, "sha256:a")),
        ("key-r2", "end", "cancelled"),
    ]
    assert read_at_s - 60 < min(event.at_s for event in events) <= max(event.at_s for event in events) < read_at_s


# Requests

GOOD = Sample(
    "key",
    0,
    request_id="r1",
    images=[b"image"],
    state="completed",
    rows=1,
    commits=1,
    equals_reference=True,
    stays_the_same=True,
)
LEFT = replace(GOOD, images=[], state="cancelled", error="CLIENT_LEFT", commits=0)


SAMPLES: dict[str, tuple[Sample, bool, bool, bool]] = {
    "good": (GOOD, False, False, False),
    "its client left": (LEFT, False, False, False),
    "no image": (replace(GOOD, images=[]), True, False, False),
    "failed": (replace(GOOD, state="failed"), True, False, False),
    "missing": (replace(GOOD, state="missing"), True, False, False),
    "cancelled for a worker": (replace(LEFT, error="WORKER_LOST"), True, False, False),
    "left and committed": (replace(LEFT, commits=1), True, False, False),
    "two commits": (replace(GOOD, commits=2), False, False, True),
    "two rows": (replace(GOOD, rows=2), False, False, True),
    "two images": (replace(GOOD, images=[b"image"] * 2), False, False, True),
    "another answer later": (replace(GOOD, stays_the_same=False), False, False, True),
    "another image": (replace(GOOD, equals_reference=False), False, True, False),
    "by the cache": (replace(GOOD, equals_reference=False, cached=True), False, False, False),
}


def test_sample_has_verdicts() -> None:
    found = {name: (one.lost, one.changed, one.committed_twice) for name, (one, *_) in SAMPLES.items()}

    assert found == {name: tuple(verdicts) for name, (_, *verdicts) in SAMPLES.items()}


# Remains


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


def test_orphan_objects_finds_object_without_row(state: StateDirectory) -> None:
    store = FilesystemObjectStore(state.path / "objects")
    for key in ("results/held", "results/lost", "cache/a/held", "cache/a/lost"):
        store.put(key, b"x")
    execute(
        state.path / "frontdoor.sqlite",
        """INSERT INTO journal_requests (request_id, tenant, body, body_hash, accepted_at, frontdoor_id,
            frontdoor_epoch, state, newest_token, newest_epoch, attempt_count, image_key, error_reason, error_message,
            body_format, cascade_stage, detached)
            VALUES ('r', 't', '', '', 0, '', 0, 'completed', 0, 0, 0, 'results/held', '', '', 1, 0, 0)""",
    )
    execute(
        state.path / "gateway.sqlite",
        "INSERT INTO cache_objects (key, grant_id, compatibility_key) VALUES ('cache/a/held', 'g', '')",
    )

    assert sorted(orphan_objects(state)) == ["cache/a/lost", "results/lost"]


def test_remains_have_open_grant_staged_file_and_socket(state: StateDirectory) -> None:
    for grant, entry in (("open", "NULL"), ("committed", "'e'")):
        execute(
            state.path / "gateway.sqlite",
            f"""INSERT INTO cache_grants (grant_id, pool, tenant, scope_digest, request_id, fencing_token,
                expires_at, entry_id) VALUES ('{grant}', '', '', '', '', 0, 0, {entry})""",
        )
    (state.path / "objects" / "staging" / "upload").touch()
    state.sockets.mkdir()
    (state.sockets / "frontdoor.sock").touch()

    assert open_grants(state) == 1
    assert half_written(state) == ["objects/staging/upload"]
    assert str(state.sockets / "frontdoor.sock") in list(left_after_the_end(state))


# Memory after an attack

HELD_MIB = 200
# holds much memory until it receives a line
PROGRAM = f"""
import sys
held = bytearray(b"x" * ({HELD_MIB} << 20))
print("held", flush=True)
sys.stdin.readline()
del held
print("freed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def holder() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def before(process: "subprocess.Popen[str]") -> dict[str, tuple[psutil.Process, int]]:
    """Return sizes as if half of the memory had come by an attack."""
    known = psutil.Process(process.pid)
    return {"holder": (known, known.memory_info().rss - HELD_MIB * MIB // 2)}


async def test_kept_memory_waits_for_release_until_limit(holder: "subprocess.Popen[str]") -> None:
    assert await kept_after_rest(before(holder), limit_s=0.0) == {"holder": pytest.approx(HELD_MIB / 2, abs=1.0)}

    waiting = asyncio.create_task(kept_after_rest(before(holder), limit_s=60.0))
    await asyncio.sleep(0)
    assert holder.stdin is not None
    holder.stdin.write("\n")
    holder.stdin.flush()

    assert (await waiting)["holder"] < 0


async def test_kept_memory_skips_ended_process(holder: "subprocess.Popen[str]") -> None:
    processes = before(holder)
    holder.kill()
    holder.wait()

    assert await kept_after_rest(processes, limit_s=60.0) == {}


@pytest.mark.parametrize("kept_mib, ok", [(64.0, True), (64.1, False)])
def test_kept_memory_figure_uses_largest_process(kept_mib: float, ok: bool) -> None:
    played = [
        Played("flood", {}, 1.0, {"edge": 1.0}, {"edge": 1.0, "frontdoor": kept_mib}, attacked_s={"status": [0.1]}),
        Played("bombs", {}, 1.0, {"edge": 1.0}, {"edge": 2.0}),
    ]

    (figure,) = [one for one in figures_of(played) if one.name == "most kept by a process after a rest"]

    assert (figure.value, figure.ok) == (kept_mib, ok)
