"""Test that the embedded index survives a child process that dies, hangs, is shared or is broken."""

import asyncio
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.vectors import Space, VectorPoint, VectorQuery
from pentimento.stores.vectors.edge import EdgeVectorIndex
from pentimento.stores.vectors.frames import Frame, send_frame
from pentimento.stores.vectors.index_shard import IndexShard, _serve
from pentimento.stores.vectors.shard_process import ShardProcess, ShardTiming
from tests.support.processes import runs
from tests.support.searches import search_now
from tests.support.waiting import wait_until

ONE = struct.pack("<2f", 1, 0)
QUERY = VectorQuery(Space.TEXT, ONE, ("t",), ("k",), 5)
TIMEOUT_S = 120.0
TIMING = ShardTiming(first_restart_s=0.05, max_restart_s=0.2, hang_s=TIMEOUT_S, send_s=0.2)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[EdgeVectorIndex]:
    index = EdgeVectorIndex(tmp_path / "index", TIMING)
    index.prepare(2)
    yield index
    index.close()


def point() -> VectorPoint:
    return VectorPoint(str(uuid.uuid4()), "t", ("k",), 1000.0, ONE)


def child_of(index: EdgeVectorIndex) -> psutil.Process:
    assert index.process is not None
    assert index.process.pid is not None
    return psutil.Process(index.process.pid)


def test_a_killed_child_is_replaced_and_nothing_acknowledged_is_lost(index: EdgeVectorIndex) -> None:
    points = [point() for _ in range(100)]
    index.upsert(points)

    child = child_of(index)
    child.kill()
    child.wait(TIMEOUT_S)
    wait_until(lambda: index.process is not None and index.process.start_count == 2)
    index.prepare(2)

    assert set(index.entry_ids()) == {each.entry_id for each in points}


def test_a_child_that_cannot_be_started_is_tried_again(index: EdgeVectorIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    index.upsert([point()])
    spawn, refused = ShardProcess._spawn, list[int]()

    def without_memory_once(*arguments: Any) -> "subprocess.Popen[bytes]":
        if not refused:
            refused.append(errno.ENOMEM)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return spawn(*arguments)

    monkeypatch.setattr(ShardProcess, "_spawn", without_memory_once)
    child_of(index).kill()

    wait_until(lambda: bool(refused))
    assert index.process is not None
    index.process.wait_ready(TIMEOUT_S)
    assert len(search_now(index, QUERY)) == 1


def test_calls_fail_immediately_while_the_child_is_missing(index: EdgeVectorIndex) -> None:
    with ThreadPoolExecutor(1) as threads:
        child_of(index).suspend()
        waiting = threads.submit(lambda: list(index.entry_ids()))
        # Without this request, the next child might already run.
        wait_until(lambda: index.process is not None and bool(index.process._outstanding))
        child_of(index).kill()

        with pytest.raises(StoreUnavailable):
            waiting.result(TIMEOUT_S)


def test_call_without_an_answer_is_abandoned(index: EdgeVectorIndex) -> None:
    child, process = child_of(index), index.process
    assert process is not None
    child.suspend()

    with pytest.raises(StoreUnavailable, match="no answer within 20 ms"):
        process.call({"op": "count"}, timeout_s=0.02)

    child.resume()
    assert process.call({"op": "count"}, timeout_s=TIMEOUT_S).header["points"] == 0


async def test_search_that_begins_too_late_is_skipped(index: EdgeVectorIndex) -> None:
    with pytest.raises(StoreUnavailable, match="the caller gave up already"):
        await index.search(QUERY, -1.0)


async def test_cancelled_search_leaves_later_searches_alone(index: EdgeVectorIndex) -> None:
    child = child_of(index)
    child.suspend()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await index.search(QUERY, TIMEOUT_S)
    child.resume()

    assert await index.search(QUERY, TIMEOUT_S) == []
    assert index.process is not None
    assert index.process.start_count == 1


async def test_search_ends_when_the_child_dies(index: EdgeVectorIndex) -> None:
    child = child_of(index)
    child.suspend()
    waiting = asyncio.create_task(index.search(QUERY, TIMEOUT_S))
    await asyncio.sleep(0)
    child.kill()

    with pytest.raises(StoreUnavailable):
        await waiting


async def test_searches_beyond_a_full_socket_leave_the_loop_free_and_are_answered(tmp_path: Path) -> None:
    index = EdgeVectorIndex(tmp_path / "index", TIMING)
    index.prepare(8192)  # 32 KiB a search: a few fill the socket's buffer
    query = VectorQuery(Space.TEXT, struct.pack("<8192f", 1, *[0] * 8191), ("t",), ("k",))
    child = child_of(index)
    child.suspend()
    waiting = [asyncio.create_task(index.search(query, TIMEOUT_S)) for _ in range(32)]
    done, pending = await asyncio.wait(waiting, timeout=0)
    assert (len(done), len(pending)) == (0, 32)
    assert index.process is not None and index.process._searches is not None
    assert index.process._searches._unsent

    child.resume()

    assert await asyncio.gather(*pending) == [[]] * 32
    assert not index.process._searches._unsent
    index.close()


class RecordingShard(IndexShard):
    """Record the requests in order."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 2)
        self.asked: list[str] = []

    def answer(self, frame: Frame) -> Frame:
        self.asked.append(frame.header["op"])
        return super().answer(frame)


def test_searches_go_before_writes_but_never_keep_one_waiting_for_good(tmp_path: Path) -> None:
    shard = RecordingShard(tmp_path / "shard")
    (ours, wire), (our_searches, searches) = socket.socketpair(), socket.socketpair()
    for number in range(2):
        send_frame(ours, Frame({"id": number + 1, "op": "count"}))
    for number in range(40):
        send_frame(our_searches, Frame({"id": number + 1, "op": "ids"}))
    ours.shutdown(socket.SHUT_WR)

    _serve(wire, searches, shard)

    assert shard.asked[:34] == [*["ids"] * 16, "count"] * 2
    for each in (ours, wire, our_searches, searches):
        each.close()


async def test_a_stuck_child_is_not_flooded(index: EdgeVectorIndex) -> None:
    child = child_of(index)
    child.suspend()
    waiting = [asyncio.create_task(index.search(QUERY, TIMEOUT_S)) for _ in range(64)]
    await asyncio.sleep(0)

    with pytest.raises(StoreUnavailable, match="64 calls are waiting already"):
        await index.search(QUERY, TIMEOUT_S)
    child.kill()
    await asyncio.gather(*waiting, return_exceptions=True)


def test_a_child_that_hangs_is_killed_and_replaced(index: EdgeVectorIndex) -> None:
    kept = point()
    index.upsert([kept])
    child = child_of(index)
    child.suspend()

    assert index.process is not None
    with pytest.raises(StoreUnavailable):
        index.process.call({"op": "count"}, timeout_s=0.02)
    # Set it only now, so that a busy child is never taken for a hanging one.
    index.process._timing = replace(TIMING, hang_s=0.1)
    child.wait(TIMEOUT_S)
    index.process._timing = TIMING
    wait_until(lambda: index.process is not None and index.process.start_count == 2)
    index.prepare(2)

    assert list(index.entry_ids()) == [kept.entry_id]


def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pentimento.stores.vectors.edge import EdgeVectorIndex\n"
        "index = EdgeVectorIndex(Path(sys.argv[1]))\n"
        "index.prepare(2)\n"
        "print(index.process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = (sys.executable, "-c", script, str(tmp_path / "index"))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()

    wait_until(lambda: not runs(child))


def test_signals_to_the_whole_group_leave_the_stop_to_the_parent(index: EdgeVectorIndex) -> None:
    child = child_of(index)
    os.kill(child.pid, signal.SIGINT)
    os.kill(child.pid, signal.SIGTERM)

    index.upsert([point()])

    assert index.process is not None
    assert index.process.start_count == 1


def test_unreadable_shard_is_replaced_by_an_empty_one(tmp_path: Path) -> None:
    first = EdgeVectorIndex(tmp_path, TIMING)
    first.prepare(2)
    first.upsert([point()])
    first.close()
    for path in (tmp_path / "v2-d2").rglob("*.json"):
        path.write_bytes(b"not JSON")

    second = EdgeVectorIndex(tmp_path, TIMING)
    second.prepare(2)

    assert list(second.entry_ids()) == []
    second.upsert([point()])
    second.close()


def test_a_start_that_was_cut_off_leaves_no_shard(tmp_path: Path) -> None:
    (tmp_path / "v2-d2.unfinished-1").mkdir(parents=True)
    index = EdgeVectorIndex(tmp_path, TIMING)
    index.prepare(2)

    assert list(index.entry_ids()) == []
    index.close()


def test_a_closed_index_leaves_no_process(tmp_path: Path) -> None:
    index = EdgeVectorIndex(tmp_path, TIMING)
    index.prepare(2)
    child = child_of(index)

    index.close()

    assert not child.is_running()
