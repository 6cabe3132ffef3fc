"""Copy points from one shard to another, by id: points that change during the copy are copied again."""

import time
from collections.abc import Sequence
from typing import Any

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.vectors.serving_shard import BATCH_COUNT, ServingShard, batches
from pentimento.stores.vectors.shard_process import ShardProcess

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
