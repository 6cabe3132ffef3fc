"""Test the build of a new embedded index while the old one serves: no entry is lost, searches continue, and after a
failure the old one serves."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.vectors import Space, VectorPoint, VectorQuery
from pentimento.stores.vectors.edge import EdgeVectorIndex
from pentimento.stores.vectors.index_building import IndexBuilding
from pentimento.stores.vectors.rebuild import OnPhase
from pentimento.stores.vectors.shard_process import ShardTiming
from tests.support.searches import search_now
from tests.support.waiting import wait_until

DIMENSION_COUNT = 32
TIMEOUT_S = 150.0
TIMING = ShardTiming(first_restart_s=0.05, max_restart_s=0.2)
# Builds do not yield: while other tests keep every core busy, a yielding build would take minutes.
BUILDING = IndexBuilding(least_points_count=1000, unindexed_share=0.5, first_retry_s=0.05, yields=False)
NEVER = IndexBuilding(least_points_count=10**9)
PHASES = ("copy", "graph", "load", "catch_up", "swap", "done")

Vectors = NDArray[np.float32]


def ignore(phase: str) -> None:
    return


def opened(directory: Path, building: IndexBuilding = BUILDING, on_phase: OnPhase = ignore) -> EdgeVectorIndex:
    index = EdgeVectorIndex(directory, TIMING, building, on_phase)
    index.prepare(DIMENSION_COUNT)
    return index


def clustered(count: int, seed: int = 0) -> Vectors:
    """Return unit vectors around 150 random centres, as prompts of one session share a theme."""
    chance = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((150, DIMENSION_COUNT))
    near = centres[chance.integers(0, len(centres), count)] + 0.5 * chance.standard_normal((count, DIMENSION_COUNT))
    unit: Vectors = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    return unit


def points_at(vectors: Vectors, first: int = 0, tenant_count: int = 1) -> list[VectorPoint]:
    return [
        VectorPoint(id_of(first + at), f"t{at % tenant_count}", ("k",), 1000.0, vector.tobytes())
        for at, vector in enumerate(vectors)
    ]


def id_of(number: int) -> str:
    return str(uuid.UUID(int=number + 1))


def query(vector: Vectors, *tenants: str, limit: int = 4) -> VectorQuery:
    return VectorQuery(Space.TEXT, vector.astype(np.float32).tobytes(), tenants or ("t0",), ("k",), limit)


def built(index: EdgeVectorIndex) -> int:
    return 0 if index.schedule is None else index.schedule.builds_count


def failed(index: EdgeVectorIndex) -> int:
    return 0 if index.schedule is None else index.schedule.failures_count


def children_for(directory: Path) -> list[psutil.Process]:
    """Return the processes of the index in that directory. Other children of this process may be ending without a
    command line."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if str(directory) in " ".join(child.cmdline()):
                found.append(child)
    return found


def directories(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.is_dir()}


@pytest.mark.slow
@pytest.mark.parametrize("tenant_count", [1, 3, 40])
def test_built_index_finds_nearest_by_full_comparison(tmp_path: Path, tenant_count: int) -> None:
    vectors, queries = clustered(2000), clustered(100, seed=1)
    index = opened(tmp_path)
    index.upsert(points_at(vectors, tenant_count=tenant_count))
    wait_until(lambda: built(index) > 0 and index.counts.changed_count < 1000)

    found = [[match.entry_id for match in search_now(index, query(one))] for one in queries]
    index.close()

    mine = np.arange(0, len(vectors), tenant_count)
    true = [{id_of(mine[at]) for at in np.argsort(-(vectors[mine] @ one))[:4]} for one in queries]
    recall = np.mean([len(set(ids) & wanted) / 4 for ids, wanted in zip(found, true, strict=True)])
    assert recall >= 0.95


def test_built_index_adds_int8_vectors(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.upsert(points_at(clustered(1200)))
    wait_until(lambda: built(index) > 0)

    # One byte per dimension of each vector with a graph.
    sizes_bytes = [path.stat().st_size for path in tmp_path.rglob("quantized.data")]
    index.close()

    assert max(sizes_bytes) >= 1000 * DIMENSION_COUNT


def test_small_index_is_rebuilt_without_a_graph_after_many_changes(tmp_path: Path) -> None:
    vectors = clustered(600)
    index = opened(tmp_path)
    index.upsert(points_at(vectors))
    first = index.process
    index.delete([id_of(number) for number in range(450)])
    wait_until(lambda: built(index) > 0 and index.process is not first)

    found = {search_now(index, query(one, limit=1))[0].entry_id for one in vectors[450:]}
    graphs = [*tmp_path.rglob("quantized.data")]
    index.close()

    assert found == {id_of(number) for number in range(450, 600)}
    assert graphs == []


def test_similarities_are_cosines_after_a_build_too(tmp_path: Path) -> None:
    vectors = clustered(1200)
    index = opened(tmp_path)
    index.upsert(points_at(vectors))
    wait_until(lambda: built(index) > 0)

    (found,) = search_now(index, query(vectors[7], limit=1))
    index.close()

    assert found.entry_id == id_of(7)
    assert found.similarity == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("phase", ["copy", "graph", "load", "catch_up"])
def test_points_written_during_build_are_in_new_index(tmp_path: Path, phase: str) -> None:
    vectors, others = clustered(1200), clustered(10, seed=5)
    made: list[EdgeVectorIndex] = []

    def write(now: str) -> None:
        if now == phase and not built(made[0]):
            made[0].upsert(points_at(others[:5], first=5000))  # new ones
            made[0].upsert(points_at(others[5:], first=0))  # replaced ones
            made[0].delete([id_of(100), id_of(101)])

    made.append(EdgeVectorIndex(tmp_path, TIMING, BUILDING, write))
    index = made[0]
    index.prepare(DIMENSION_COUNT)
    index.upsert(points_at(vectors))
    wait_until(lambda: built(index) > 0)

    # A lost point leaves a build with too few points; the next build would include it again.
    assert failed(index) == 0
    expected = {id_of(number) for number in (*range(1200), *range(5000, 5005))} - {id_of(100), id_of(101)}
    assert set(index.entry_ids()) == expected
    assert search_now(index, query(others[0], limit=1))[0].entry_id == id_of(5000)
    assert search_now(index, query(others[7], limit=1))[0].similarity == pytest.approx(1.0, abs=1e-5)
    assert search_now(index, query(vectors[2], limit=1))[0].similarity < 0.99
    index.close()


def test_images_and_every_key_of_an_entry_come_along(tmp_path: Path) -> None:
    vectors = clustered(1200)
    index = opened(tmp_path)
    with_image = VectorPoint(id_of(9000), "t7", ("other", "k2"), 1000.0, vectors[0].tobytes(), vectors[1].tobytes())
    index.upsert([with_image, *points_at(vectors)])
    wait_until(lambda: built(index) > 0)

    by_image = VectorQuery(Space.IMAGE, vectors[1].tobytes(), ("t7",), ("k2",), 5)
    (found,) = search_now(index, by_image)
    index.close()

    assert found.entry_id == with_image.entry_id
    assert found.similarity == pytest.approx(1.0, abs=1e-5)


@pytest.mark.slow
def test_searches_continue_during_builds_and_swaps(tmp_path: Path) -> None:
    vectors = clustered(2200)
    index = opened(tmp_path)
    index.upsert(points_at(vectors[:900]))
    failures: list[Exception] = []
    over = threading.Event()

    async def search() -> None:
        while not over.is_set():
            try:
                assert (await index.search(query(vectors[0], limit=1), TIMEOUT_S))[0].entry_id == id_of(0)
            except Exception as error:
                failures.append(error)
                return

    async def search_twice_at_once() -> None:
        await asyncio.gather(search(), search())

    searching = threading.Thread(target=lambda: asyncio.run(search_twice_at_once()))
    searching.start()
    index.upsert(points_at(vectors[900:1000], first=900))
    wait_until(lambda: built(index) > 0)
    index.upsert(points_at(vectors[1000:], first=1000))
    wait_until(lambda: built(index) > 1)
    over.set()
    searching.join()
    index.close()

    assert failures == []


def test_builder_has_idle_priority_and_server_the_usual_one(tmp_path: Path) -> None:
    usual, policies = os.sched_getscheduler(0), list[tuple[int, int]]()

    def look(phase: str) -> None:
        if phase == "copy" and not policies:
            builder = next(child for child in children_for(tmp_path) if "--shape" in child.cmdline())
            serving = next(child for child in children_for(tmp_path) if "--shape" not in child.cmdline())
            policies.append((os.sched_getscheduler(builder.pid), os.sched_getscheduler(serving.pid)))
            # If other tests keep every core busy, an idle-scheduled build never ends.
            with suppress(PermissionError):
                os.sched_setscheduler(builder.pid, os.SCHED_OTHER, os.sched_param(0))

    index = opened(tmp_path, replace(BUILDING, yields=True), look)
    index.upsert(points_at(clustered(1000)))
    wait_until(lambda: built(index) > 0)
    process = index.process
    assert process is not None
    assert process.pid is not None
    assert policies == [(os.SCHED_IDLE, usual)]
    assert os.sched_getscheduler(process.pid) == usual
    index.close()


@pytest.mark.slow
def test_killed_builder_loses_only_its_build(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_once(phase: str) -> None:
        if phase == "graph" and not killed:
            builder = next(child for child in children_for(tmp_path) if "--shape" in child.cmdline())
            builder.suspend()  # while suspended, it cannot report that it is done
            killed.append(builder.pid)
            builder.kill()

    index = opened(tmp_path, on_phase=kill_once)
    vectors = clustered(1200)
    index.upsert(points_at(vectors))
    wait_until(lambda: built(index) > 0)

    assert (len(killed), failed(index)) == (1, 1)
    assert index.process is not None
    assert index.process.start_count == 1
    assert set(index.entry_ids()) == {id_of(number) for number in range(1200)}
    index.close()


def test_build_without_room_leaves_old_index_serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pentimento.stores.vectors.rebuild.needed_room_bytes", lambda *_: 2**62)
    index = opened(tmp_path)
    vectors = clustered(1200)
    index.upsert(points_at(vectors))
    wait_until(lambda: failed(index) > 1)

    assert search_now(index, query(vectors[5], limit=1))[0].entry_id == id_of(5)
    assert directories(tmp_path) == {f"v2-d{DIMENSION_COUNT}"}
    index.close()


def test_build_with_lost_points_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pentimento.stores.vectors.rebuild.copy_all", lambda source, target: None)
    index = opened(tmp_path)
    index.upsert(points_at(clustered(1200)))
    wait_until(lambda: failed(index) > 0)

    assert built(index) == 0
    assert len(set(index.entry_ids())) == 1200
    index.close()


KILLED_IN_A_PHASE = """
import os, signal, sys
from pathlib import Path
import numpy as np
from tests.contract.stores.test_index_rebuild import BUILDING, clustered, opened, points_at

def on_phase(phase):
    if phase == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

index = opened(Path(sys.argv[1]), BUILDING, on_phase)
index.upsert(points_at(clustered(1200)))
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_kill_in_any_phase_loses_no_point_and_leaves_no_file(tmp_path: Path, phase: str) -> None:
    command = (sys.executable, "-c", KILLED_IN_A_PHASE, str(tmp_path), phase)
    with subprocess.Popen(command, stdin=subprocess.PIPE) as victim:
        assert victim.wait(TIMEOUT_S) == -signal.SIGKILL

    index = opened(tmp_path, NEVER)

    assert set(index.entry_ids()) == {id_of(number) for number in range(1200)}
    assert len(directories(tmp_path)) == 1
    vectors = clustered(1200)
    assert search_now(index, query(vectors[3], limit=1))[0].entry_id == id_of(3)
    index.close()


@pytest.mark.slow
def test_built_index_is_served_after_restart_without_rebuild(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.upsert(points_at(clustered(1200)))
    wait_until(lambda: built(first) > 0)
    first.close()

    second = opened(tmp_path)
    counts = second.counts

    assert (counts.points_count, built(second)) == (1200, 0)
    assert counts.changed_count < 600
    assert directories(tmp_path) == {f"v2-d{DIMENSION_COUNT}.g000002"}
    second.close()


def test_index_can_be_closed_during_build(tmp_path: Path) -> None:
    reached = threading.Event()
    index = opened(tmp_path, on_phase=lambda phase: reached.set() if phase == "copy" else None)
    index.upsert(points_at(clustered(1200)))
    assert reached.wait(TIMEOUT_S)

    index.close()

    assert children_for(tmp_path) == []
    with pytest.raises(Exception, match="not prepared"):
        index.upsert(points_at(clustered(1)))


def test_second_process_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pentimento.stores.vectors.edge._START_TIMEOUT_S", 0.1)
    first = EdgeVectorIndex(tmp_path, TIMING)
    monkeypatch.undo()
    first.prepare(DIMENSION_COUNT)
    monkeypatch.setattr("pentimento.stores.vectors.edge._START_TIMEOUT_S", 0.1)

    with pytest.raises(StoreUnavailable, match="another process"):
        EdgeVectorIndex(tmp_path, TIMING).prepare(DIMENSION_COUNT)

    first.close()
