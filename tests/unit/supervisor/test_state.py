"""The state directory: one suite at a time, found by the others, with short private sockets."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pentimento.cli.connection import running_suite
from pentimento.domain.errors import FailedPrecondition
from pentimento.supervisor import state as state_module
from pentimento.supervisor.state import MAX_SOCKET_DIRECTORY, Endpoint, StateDirectory, make_private, socket_directory

ENDPOINT = Endpoint("unix:/f", "127.0.0.1:1", "unix:/c", "unix:/g", "", os.getpid())


def test_second_suite_on_same_directory_is_refused_until_release(tmp_path: Path) -> None:
    first, second = StateDirectory(tmp_path), StateDirectory(tmp_path)
    first.acquire()

    with pytest.raises(FailedPrecondition, match=f"pid {os.getpid()}") as refused:
        second.acquire()
    first.release()
    second.acquire()

    assert refused.value.reason == "SUITE_RUNNING"
    assert second.owner() == os.getpid()
    second.release()


def test_endpoint_is_of_the_suite_that_runs(tmp_path: Path) -> None:
    crashed, state = StateDirectory(tmp_path), StateDirectory(tmp_path)
    found = [state.endpoint()]
    crashed.acquire()
    crashed.publish(ENDPOINT)
    found.append(state.endpoint())
    crashed.release()
    found.append(state.endpoint())
    state.acquire()  # with the same pid
    found.append(state.endpoint())
    state.release()

    assert found == [None, ENDPOINT, None, None]


def test_endpoint_of_crashed_supervisor_is_not_believed_while_next_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed_pid = os.getpid() + 1
    (tmp_path / "endpoint.json").write_text(json.dumps(asdict(replace(ENDPOINT, supervisor_pid=crashed_pid))))
    (tmp_path / "lock").write_text(f"{crashed_pid}\n")
    found: list[Endpoint | None] = []
    monkeypatch.setattr(state_module, "live_supervisor", lambda path: found.append(StateDirectory(path).endpoint()))
    state = StateDirectory(tmp_path)

    state.acquire()

    assert found == [None]
    state.release()


@pytest.mark.parametrize("text", ["", "{", '{"frontdoor": "unix:/f", "of_another_version": 1}'])
def test_an_endpoint_that_is_cut_off_or_of_another_version_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "endpoint.json").write_text(text)

    assert StateDirectory(tmp_path).endpoint() is None


def test_sockets_fit_a_socket_address_however_long_the_state_path(tmp_path: Path) -> None:
    directory = socket_directory(tmp_path / ("x" * 200) / ("y" * 200))

    assert len(str(directory)) <= MAX_SOCKET_DIRECTORY


def test_two_state_directories_do_not_share_sockets(tmp_path: Path) -> None:
    assert socket_directory(tmp_path / "a") != socket_directory(tmp_path / "b")


@pytest.mark.parametrize("trap", ["open to others", "a link elsewhere"])
def test_private_directory_is_closed_and_foreign_one_is_rejected(tmp_path: Path, trap: str) -> None:
    directory = tmp_path / "sockets"
    make_private(tmp_path / "own")
    assert (tmp_path / "own").stat().st_mode & 0o077 == 0
    if trap == "open to others":
        directory.mkdir()
        directory.chmod(0o777)
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        directory.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(FailedPrecondition):
        make_private(directory)


def test_files_a_suite_left_open_to_others_are_closed_and_no_other(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "objects" / "objects").mkdir(parents=True)
    (state / "objects" / "objects" / "picture").touch()
    ours = [state / "objects" / "objects" / "picture", state / "frontdoor.sqlite", state / "frontdoor.sqlite-wal"]
    (state / "notes.txt").touch()
    for file in (*ours, state / "notes.txt"):
        file.touch()
        file.chmod(0o644)
    for folder in (state, state / "objects", state / "objects" / "objects"):
        folder.chmod(0o755)

    StateDirectory(state).acquire()

    kept = [state, state / "logs", state / "lock", state / "objects", state / "objects" / "objects", *ours]
    assert [path for path in kept if path.stat().st_mode & 0o077] == []
    assert (state / "notes.txt").stat().st_mode & 0o777 == 0o644


def test_starting_suite_reports_last_lines_of_its_processes(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.acquire()
    (state.logs / "heavy-0.log").write_text("x" * 100_000 + "\nloading the model\nmeasuring a step\n")
    (state.logs / "embedder.log").touch()
    earlier = state.logs / "light-0.log"
    earlier.write_text("of another run\n")
    os.utime(earlier, (0, 0))

    with pytest.raises(FailedPrecondition) as refused:
        running_suite(tmp_path)

    state.release()
    assert refused.value.reason == "SUITE_STARTING"
    assert refused.value.message.splitlines()[1:] == ["  embedder: ", "  heavy-0: measuring a step"]
