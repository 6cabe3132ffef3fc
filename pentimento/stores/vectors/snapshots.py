"""Snapshots of the embedded index: its points in a directory, taken while it serves, and put back where nothing serves.

    <snapshot>/snapshot.json      format, dimensions, number of points, when it was taken
    <snapshot>/shard              the points; the graph is built again after a restore, beside the serving index

The ledger stays the truth: what a restored index lacks or has too much is put right by the gateway's reconciliation.
That writes every point once more: a snapshot has keys that entries have lost since.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pentimento.domain.errors import InvalidArgument
from pentimento.files.private_files import make_private_directory
from pentimento.stores.errors import SchemaMismatch, StoreUnavailable
from pentimento.stores.vectors.generations import Generation, Generations
from pentimento.stores.vectors.serving_shard import ServingShard, points_of
from pentimento.stores.vectors.shard_copy import catch_up, copy_all, copy_changed
from pentimento.stores.vectors.shard_process import ShardProcess, ShardTiming

_FORMAT = "v1"
_MANIFEST = "snapshot.json"
_SHARD = "shard"
_START_TIMEOUT_S = 60.0
_FLUSH_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class SnapshotManifest:
    """What a snapshot says of itself; `taken_at` in wall seconds."""

    format: str
    dimension_count: int
    points_count: int
    taken_at: float


def take_snapshot(serving: ServingShard, dimension_count: int, target: Path, timing: ShardTiming) -> SnapshotManifest:
    """Copy the points into a new directory, as they are when this returns; searches and writes go on meanwhile.

    Raises InvalidArgument when `target` is there already, StoreUnavailable, OSError; then there is no snapshot.
    """
    if target.exists():
        raise InvalidArgument.of("snapshot", "must be a directory that is not there yet")
    make_private_directory(target.parent)
    unfinished = target.with_name(f"{target.name}.unfinished-{time.time_ns()}")
    unfinished.mkdir()
    try:
        points_count = _copy(serving, dimension_count, unfinished / _SHARD, timing)
        manifest = SnapshotManifest(_FORMAT, dimension_count, points_count, time.time())
        (unfinished / _MANIFEST).write_text(json.dumps(asdict(manifest)))
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return manifest


def restore_snapshot(snapshot: Path, directory: Path, timeout_s: float = 20.0) -> SnapshotManifest:
    """Make the index in `directory` what the snapshot holds, in one rename at the end. Nothing may be serving it.

    Raises SchemaMismatch for what is no snapshot or has vectors of another size, StoreUnavailable while another process
    has the index open, OSError; the index is then what it was.
    """
    manifest = read_manifest(snapshot)
    with _held(directory, manifest.dimension_count, timeout_s) as generations:
        path = generations.following()
        try:
            shutil.copytree(snapshot / _SHARD, path)
            generations.publish(Generation(path, restored=True))
        except OSError:
            generations.discard(path)
            raise
        generations.clean()
    return manifest


def empty_index(directory: Path, dimension_count: int, timeout_s: float = 20.0) -> None:
    """Throw the points away, so that the index is filled anew from the ledger. Nothing may be serving it.

    Raises StoreUnavailable while another process has the index open, SchemaMismatch, OSError.
    """
    with _held(directory, dimension_count, timeout_s) as generations:
        generations.publish(Generation(generations.following()))
        generations.clean()


def read_manifest(snapshot: Path) -> SnapshotManifest:
    """Return what the snapshot says of itself. Raises SchemaMismatch when it is none that this version reads."""
    try:
        found = json.loads((snapshot / _MANIFEST).read_text())
        manifest = SnapshotManifest(
            str(found["format"]), int(found["dimension_count"]), int(found["points_count"]), float(found["taken_at"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SchemaMismatch(
            "vector index", f"there is no snapshot that can be read: {type(error).__name__}"
        ) from error
    if manifest.format != _FORMAT or not (snapshot / _SHARD).is_dir():
        raise SchemaMismatch("vector index", f"the snapshot is not whole, or not of format {_FORMAT}")
    return manifest


def _copy(serving: ServingShard, dimension_count: int, path: Path, timing: ShardTiming) -> int:
    arguments = ("--directory", str(path), "--dimension-count", str(dimension_count))
    process = ShardProcess(arguments, timing, restarts=False)
    process.start()
    try:
        process.wait_ready(_START_TIMEOUT_S)
        with serving.noting_changes():
            copy_all(serving, process)
            catch_up(serving, process)
            with serving.writes_held() as last:
                copy_changed(serving, process, last)
                expected = points_of(serving.process)
        process.call({"op": "flush"}, timeout_s=_FLUSH_TIMEOUT_S)
        if (copied := points_of(process)) != expected:
            raise StoreUnavailable("vector index", f"the snapshot has {copied} points, not {expected}")
        return copied
    finally:
        process.close()


@contextmanager
def _held(directory: Path, dimension_count: int, timeout_s: float) -> Iterator[Generations]:
    generations = Generations(directory, dimension_count)
    generations.hold(timeout_s)
    try:
        yield generations
    finally:
        generations.release()
