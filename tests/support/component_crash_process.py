"""Crash at every change that a component store makes to its disk, and check what remains.

    python -m tests.support.component_crash_process DIRECTORY SCENARIO KIND STRIDE CONNECTIONS

A child process for each `STRIDE`-th change, by kind:

| kind | a child |
| --- | --- |
| kill | is killed before the change, or in the middle of a write |
| again | is killed there, and twice more at drawn changes while it repairs |
| full | has a full disk from there on |
| power | is killed, and bytes that it wrote are lost, which nothing flushed |

Prints the number of crashes, and fails at the first remains that are wrong. A separate process, so that blocks are
small, and that one thread forks.
"""

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from pentimento.files import file_sums

BLOCK = file_sums.BLOCK_BYTES = 4096

from pentimento.domain.generation import ObjectReference  # noqa: E402 - after the size of blocks
from pentimento.domain.models import OBJECTS_SOURCE, ModelFile, ModelVariant, digest_of  # noqa: E402
from pentimento.files.file_sums import FileSum, SumInProgress, block_count, read_verified  # noqa: E402
from pentimento.policies.components import Utility  # noqa: E402
from pentimento.stores.components import ComponentStore, ObjectRemote, remote  # noqa: E402
from pentimento.stores.components.models import ModelFolders, remote_of  # noqa: E402
from pentimento.stores.components.remote import MAP_SUFFIX, PartialFile, map_path, put_sums  # noqa: E402
from pentimento.stores.objects import ObjectStore, open_objects  # noqa: E402
from tests.support.crash_points import FULL, KILL, OURS, run_to  # noqa: E402

POWER, AGAIN = "power", "again"
SIZE = 2 * BLOCK + 100
# Room for two of the components.
DISK_BYTES = 2 * SIZE + 1000
COMPONENTS = {f"adapters/{number}": random.Random(number).randbytes(SIZE) for number in range(3)}


@dataclass
class Host:
    """Hold a host's disk and its remote store."""

    folder: Path
    objects: ObjectStore
    references: dict[str, ObjectReference]
    models: dict[str, ModelVariant]

    @property
    def root(self) -> Path:
        return self.folder / "components"

    def store(self) -> ComponentStore:
        """Start a store, as a new process does."""
        return ComponentStore(self.root, DISK_BYTES, 0, Utility)

    def folders(self) -> ModelFolders:
        return ModelFolders(
            self.root, self.store(), lambda model: remote_of(model, f"file://{self.folder / 'objects'}")
        )

    def read(self, *keys: str) -> None:
        store = self.store()
        for key in keys:
            assert store.read(self.references[key], ObjectRemote(self.objects))[0] == COMPONENTS[key], "wrong bytes"

    def adopt(self, key: str) -> None:
        unnamed = ObjectReference(key, key, SIZE)
        with self.store().adopting(label_of(key), unnamed, ObjectRemote(self.objects)) as held:
            assert held.sum.digest == self.references[key].digest, "another digest"
            assert read_verified(held.path, held.sum) == COMPONENTS[key], "wrong bytes"

    def load(self, name: str) -> None:
        model = self.models[name]
        found = self.folders().load(model, lambda directory: contents_of(directory, model))
        assert found == {path: COMPONENTS[key] for path, key in FILES[name].items()}, "wrong bytes"
        assert self.folders().remembered(model.digest) == model, "the model is not remembered"


def label_of(key: str) -> str:
    return f"label of {key}"


FILES = {
    "first": {"unet/w.safetensors": "adapters/0", "vae/w.safetensors": "adapters/1"},
    "second": {"unet/w.safetensors": "adapters/2", "vae/w.safetensors": "adapters/1"},
}


def contents_of(directory: Path, model: ModelVariant) -> dict[str, bytes]:
    """Read a model's files as loaders do, verified."""
    sums = {file.path: FileSum(file.sha256, file.size_bytes, file.blocks) for file in model.files}
    return {path: bytes(read_verified(directory / path, found)) for path, found in sums.items()}


def rot(host: Host) -> None:
    for blob in (host.root / "blobs").iterdir():
        blob.chmod(0o600)
        blob.write_bytes(bytes(SIZE))


def forget_sums(host: Host) -> None:
    host.references.update({key: replace(one, blocks_digest="") for key, one in host.references.items()})


def evict_by_hand(host: Host) -> None:
    store, digest = host.store(), host.references["adapters/0"].digest
    store.pin(digest, pinned=True)
    store.pin(digest, pinned=False)
    assert store.drop(digest)


# The state before each crash, and the operation that crashes.
SCENARIOS: dict[str, tuple[Callable[[Host], None], Callable[[Host], None]]] = {
    "download": (lambda host: None, lambda host: host.read("adapters/0")),
    "download without sums": (forget_sums, lambda host: host.read("adapters/0")),
    "download of an unknown digest": (lambda host: None, lambda host: host.adopt("adapters/0")),
    "eviction": (lambda host: host.read("adapters/0", "adapters/1"), lambda host: host.read("adapters/2")),
    "deletion": (lambda host: host.read("adapters/0"), evict_by_hand),
    "quarantine": (lambda host: (host.read("adapters/0"), rot(host))[0], lambda host: host.read("adapters/0")),
    "swap of models": (lambda host: host.load("first"), lambda host: host.load("second")),
}


def prepared(folder: Path, before: Callable[[Host], None]) -> Host:
    """Fill the remote store, and the disk before the crash."""
    objects = open_objects(f"file://{folder / 'objects'}")
    references, files = {}, {}
    for key, data in COMPONENTS.items():
        hashing = SumInProgress()
        hashing.add(data)
        found = hashing.result()
        reference = objects.put(key, data)
        references[key] = replace(reference, blocks_digest=put_sums(objects, key, found.blocks))
        objects.put(f"models/{found.sha256}", data)
        files[key] = found
    models = {}
    for name, paths in FILES.items():
        there = tuple(ModelFile(path, files[key].sha256, SIZE, files[key].blocks) for path, key in paths.items())
        source = f"{OBJECTS_SOURCE}models/"
        models[name] = ModelVariant(name, digest_of(there), "stable_diffusion", "MIT", there, source=source)
    host = Host(folder, objects, references, models)
    before(host)
    return host


def check_remains(host: Host, rotten: set[str]) -> None:
    """Check what a kill left, without changing it: no component with wrong bytes, except the `rotten` ones,
    and no partial file that claims a block that did not arrive."""
    contents = {sha256(data).hexdigest(): data for data in COMPONENTS.values()}
    for blob in host.root.glob("blobs/*"):
        assert blob.read_bytes() == contents[blob.name] or blob.name in rotten, f"wrong bytes in {blob.name}"
    contents |= {sha256(label_of(key).encode()).hexdigest(): data for key, data in COMPONENTS.items()}
    for path in host.root.glob("partial/*"):
        if path.suffix != MAP_SUFFIX:
            claimed = claimed_blocks(path)
            assert claimed == blocks_of(contents[path.name], claimed), "a block is claimed that did not arrive"


def claimed_blocks(path: Path) -> dict[int, bytes]:
    """Return the blocks that a partial file claims to have, by number."""
    data = path.read_bytes()
    with TemporaryDirectory() as folder:
        for one in (path, map_path(path)):
            if one.exists():
                shutil.copy(one, folder)
        copy = Path(folder) / path.name
        copy.chmod(0o600)
        with copy.open("r+b") as file:
            held = PartialFile(copy, file.fileno(), SIZE)
            there = set(range(block_count(SIZE))) - set(held.missing(None))
            held.close()
    return blocks_of(data, there)


def blocks_of(data: bytes, numbers: Iterable[int]) -> dict[int, bytes]:
    return {number: data[number * BLOCK : (number + 1) * BLOCK] for number in numbers}


def check_repair(host: Host, act: Callable[[Host], None]) -> None:
    """Check that a new process serves everything, within the quota, and leaves nothing that no process uses."""
    age(host)
    act(host)
    host.read(*COMPONENTS)
    host.adopt("adapters/0")
    for name in host.models:
        host.load(name)
    age(host)
    host.folders()
    blobs = {blob.name: blob.stat().st_size for blob in (host.root / "blobs").iterdir()}
    assert sum(blobs.values()) <= DISK_BYTES, "beyond the quota"
    assert sum(one.size_bytes for one in host.store().components()) == sum(blobs.values()), "another account"
    assert list((host.root / "partial").iterdir()) == [], "partial files remain"
    assert {path.name for path in (host.root / "sums").iterdir()} == set(blobs), "sums of no component remain"
    parts = {path.name.partition(".")[0] for path in (host.root / "models").glob("*/*.json*")}
    assert parts <= {"registry", "model"} and not list((host.root / "models").glob("*/*.json.*")), "half-written files"


def age(host: Host) -> None:
    """Let hours pass before the next start."""
    for path in host.root.rglob("*"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)


def lose_power(before: Path, after: Path, generator: random.Random) -> None:
    """Lose the bytes of files that were written since, all or of some blocks; names stay."""
    for path in sorted(after.rglob("*")):
        earlier = before / path.relative_to(after)
        if path.is_symlink() or not path.is_file() or (earlier.exists() and earlier.read_bytes() == path.read_bytes()):
            continue
        data = bytearray(path.read_bytes())
        path.chmod(0o600)
        if generator.random() < 0.3:
            path.write_bytes(b"")
            continue
        for start in range(0, len(data), BLOCK):
            if generator.random() < 0.5:
                data[start : start + BLOCK] = bytes(len(data[start : start + BLOCK]))
        path.write_bytes(data)


def run(folder: Path, scenario: str, kind: str, stride: int) -> int:
    """Crash at every `stride`-th change, and return the number of crashes."""
    before, act = SCENARIOS[scenario]
    template = prepared(folder / "template", before)
    rotten = {blob.name for blob in template.root.glob("blobs/*") if not any(blob.read_bytes())}
    generator, crashes, place = random.Random(7), 0, folder / "host"
    for point in count(1, stride):
        shutil.copytree(folder / "template", place, symlinks=True)
        host = replace(template, folder=place, objects=open_objects(f"file://{place / 'objects'}"))
        points = [point, *(generator.randrange(1, 40) for _ in range(2 if kind == AGAIN else 0))]
        codes = [run_to(one, FULL if kind == FULL else KILL, partial(act, host)) for one in points]
        print(f"{scenario}, {kind}, changes {points}: exit codes {codes}", file=sys.stderr)
        assert set(codes) <= {0, OURS, -signal.SIGKILL}
        check_remains(host, rotten)
        if kind == POWER:
            lose_power(folder / "template", place, generator)
        check_repair(host, act)
        shutil.rmtree(place)
        if codes[0] == 0:
            break
        crashes += len(points)
    return crashes


if __name__ == "__main__":
    remote.CONNECTIONS = int(sys.argv[5])
    print(run(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
