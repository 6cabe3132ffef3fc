"""Build the embedded index again while the present one serves: copy, graph, catch-up, swap.

Until the pointer names the new directory (`Generations.publish`) the old index serves, and the next start finds it;
from there on the new one. A failure before costs the build, and its directory is deleted. Points that change
during the copy are copied again, by id.
"""

import logging
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Any

from pentimento.stores.errors import StoreFull, StoreUnavailable
from pentimento.stores.vectors.generations import Generation, Generations
from pentimento.stores.vectors.index import Dimensions
from pentimento.stores.vectors.index_building import IndexBuilding, IndexCounts, needed_room_bytes
from pentimento.stores.vectors.serving_shard import BATCH_COUNT, ServingShard, batches, points_of
from pentimento.stores.vectors.shard_process import ShardProcess, ShardTiming, shard_arguments

logger = logging.getLogger(__name__)

# Between two pages searches come first: a copy takes half of the serving process's time at most.
_BREATH_SHARE = 1.0
# Writes wait while the last changes are caught up with: a few batches.
_LAST_ROUND_COUNT = 4 * BATCH_COUNT
_MOST_ROUNDS = 100
# The target may run at the lowest priority.
_TARGET_TIMEOUT_S = 120.0


def copy_all(source: ServingShard, target: ShardProcess) -> None:
    """Copy every point that stays from beginning to end; of others it may copy some. Raises StoreUnavailable."""
    header: dict[str, Any] = {"op": "export", "limit": BATCH_COUNT}
    while True:
        began = time.monotonic()
        page = source.read(header)
        took_s = time.monotonic() - began
        _put(target, page.header["points"], page.body)
        if page.header["next"] is None:
            return
        header["after"] = page.header["next"]
        time.sleep(_BREATH_SHARE * took_s)


def catch_up(source: ServingShard, target: ShardProcess) -> int:
    """Copy the changed points, round by round, until few are left; return how many were copied. Raises
    StoreUnavailable."""
    copied_count = 0
    for _ in range(_MOST_ROUNDS):
        changed = source.take_noted()
        copy_changed(source, target, changed)
        copied_count += len(changed)
        if len(changed) <= _LAST_ROUND_COUNT:
            return copied_count
    raise StoreUnavailable("vector index", "more is written than a copy can catch up with")


def copy_changed(source: ServingShard, target: ShardProcess, entry_ids: Sequence[str]) -> None:
    """Make these points in the target equal to the source: present, changed, or deleted. Raises StoreUnavailable."""
    for batch in batches(entry_ids):
        page = source.read({"op": "export_some", "ids": list(batch)})
        there = {point["id"] for point in page.header["points"]}
        gone = [entry_id for entry_id in batch if entry_id not in there]
        if gone:
            target.call({"op": "delete", "ids": gone}, timeout_s=_TARGET_TIMEOUT_S)
        _put(target, page.header["points"], page.body)


def _put(target: ShardProcess, points: list[dict[str, Any]], body: bytes) -> None:
    if points:
        target.call({"op": "upsert", "points": points}, body, timeout_s=_TARGET_TIMEOUT_S)


_STORE = "vector index"
_START_TIMEOUT_S = 300.0
_LAST_ANSWERS_S = 10.0

OnPhase = Callable[[str], None]


class Rebuild:
    """Run one build. `on_phase` is called with each phase as it begins: copy, graph, load, catch_up, swap, done."""

    def __init__(
        self,
        serving: ServingShard,
        generations: Generations,
        dimensions: Dimensions,
        building: IndexBuilding,
        timing: ShardTiming,
        on_phase: OnPhase,
    ) -> None:
        self._serving = serving
        self._generations = generations
        self._dimensions = dimensions
        self._building = building
        self._timing = timing
        self._on_phase = on_phase
        self._path = generations.following()
        self._process: ShardProcess | None = None
        self._stopped = False

    def run(self) -> None:
        """Build, and serve from the new index. Raises StoreUnavailable, StoreFull, OSError: the old one serves then."""
        try:
            self._check_room()
            with self._serving.noting_changes():
                built_count = self._build()
                before = self._swap(built_count)
        except BaseException:
            self._end_process()
            self._generations.discard(self._path)
            raise
        self._generations.discard(self._retire(before))
        self._on_phase("done")

    def stop(self) -> None:
        """End the build as soon as possible; `run` raises then, unless it is about to finish."""
        self._stopped = True
        self._end_process()

    def _check_room(self) -> None:
        needed = needed_room_bytes(self._serving.counts.points_count, self._dimensions.text, self._dimensions.image)
        if (free := shutil.disk_usage(self._path.parent).free) < needed:
            raise StoreFull(_STORE, f"a build needs {needed} bytes, {free} are free")

    def _build(self) -> int:
        """Copy the points and, unless they are few, build the graph; return how many it holds."""
        slow = replace(self._timing, hang_s=math.inf, stop_s=0.5)
        flags: tuple[str, ...] = ("--yields",) if self._building.yields else ()
        if self._serving.counts.points_count >= self._building.least_points_count:
            flags += ("--shape", dumps(self._building.shape()))
        builder = self._start(slow, *flags, restarts=False)
        self._on_phase("copy")
        copy_all(self._serving, builder)
        self._on_phase("graph")
        reply = builder.call({"op": "optimise"}, timeout_s=self._building.timeout_s)
        builder.close()
        return int(reply.header["points"])

    def _swap(self, built_count: int) -> tuple[ShardProcess, Path]:
        """Load the build in a process of usual priority, catch up, and make it serve."""
        self._on_phase("load")
        successor = self._start(self._timing, restarts=True)
        self._on_phase("catch_up")
        caught_up_count = catch_up(self._serving, successor)
        with self._serving.writes_held() as last:
            copy_changed(self._serving, successor, last)
            points_count = self._compared(successor)
            generation = Generation(self._path, built_count)
            self._on_phase("swap")
            self._generations.publish(generation)
            counts = IndexCounts(points_count, caught_up_count + len(last))
            before_path = self._serving.generation.path
            return self._serving.replace(successor, generation, counts), before_path

    def _compared(self, successor: ShardProcess) -> int:
        """Return how many points both have. Raises StoreUnavailable when they differ: a build must not lose any."""
        ours, theirs = points_of(self._serving.process), points_of(successor)
        if ours != theirs:
            raise StoreUnavailable(_STORE, f"the build has {theirs} points, not {ours}")
        return ours

    def _start(self, timing: ShardTiming, *more: str, restarts: bool) -> ShardProcess:
        arguments = shard_arguments(self._path, self._dimensions)
        self._process = process = ShardProcess((*arguments, *more), timing, restarts)
        process.start()
        if self._stopped:
            raise StoreUnavailable(_STORE, "the build was stopped")
        process.wait_ready(_START_TIMEOUT_S)
        return process

    def _retire(self, before: tuple[ShardProcess, Path]) -> Path:
        process, path = before
        process.wait_idle(_LAST_ANSWERS_S)
        process.close()
        return path

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.close()
