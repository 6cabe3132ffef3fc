"""Give a model in the component store a directory of links to its files, which loaders read like any other.

models/<digest>/<name>/…      links to ../../../blobs/<sha256>
models/<digest>/registry.json the model's licence, default steps and guidance, as next to any model
models/<digest>/model.json    the description, for later starts
"""

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeVar

from pentimento.domain.components import ComponentRule
from pentimento.domain.errors import InvalidArgument, NotFound, PentimentoError
from pentimento.domain.generation import ObjectReference
from pentimento.domain.models import OBJECTS_SOURCE, ModelFile, ModelVariant
from pentimento.files.file_sums import CorruptComponent, FileSum, file_sums_in, remove_abandoned, write_whole
from pentimento.files.json_values import from_json, to_json
from pentimento.files.private_files import make_private_directory
from pentimento.stores.components.disk import STORE, HeldBlob
from pentimento.stores.components.remote import Peers, Remote, no_peers
from pentimento.stores.components.store import ComponentStore
from pentimento.stores.errors import ObjectMissing, disk_errors
from pentimento.stores.objects import open_objects

logger = logging.getLogger(__name__)
T = TypeVar("T")
_WEIGHTS = ".safetensors"
# Files of a model at a time, each with several connections.
FILES_AT_ONCE = 4


class RangeReader(Protocol):
    """Describe a store of files: an object store, or the files below an address."""

    def read_into(self, reference: ObjectReference, offset: int, buffer: memoryview) -> None:
        """Fill the buffer with the file's bytes from `offset` on."""


class KnownFiles:
    """Fetch files with sums that are known from a registration, from a store; see `remote.Remote`."""

    def __init__(self, name: str, files: RangeReader, sums: Mapping[str, FileSum]) -> None:
        """Create the source. `sums`: of the files, by digest."""
        self.name = name
        self._files = files
        self._sums = sums

    def sums(self, reference: ObjectReference) -> FileSum | None:
        """Return the registered sum of a file."""
        return self._sums.get(reference.digest)

    def read_into(self, reference: ObjectReference, offset: int, buffer: memoryview) -> None:
        """Read a range of the file. Raises NotFound COMPONENT_MISSING, and the store's errors."""
        try:
            self._files.read_into(reference, offset, buffer)
        except ObjectMissing:
            raise NotFound("COMPONENT_MISSING", f"{reference.digest}: {self.name} does not have it") from None


def remote_of(model: ModelVariant, objects_url: str) -> Remote:
    """Return the source of a model's files. Raises InvalidArgument for an address that cannot be opened."""
    sums = {file.digest: FileSum(file.sha256, file.size_bytes, file.blocks) for file in model.stored_files}
    if model.source.startswith(OBJECTS_SOURCE):
        return KnownFiles("the object store", open_objects(objects_url), sums)
    from pentimento.stores.objects.s3_prefix import S3Prefix

    prefix = S3Prefix(model.source)
    return KnownFiles(prefix.name, prefix, sums)


class ModelFolders:
    """Make and fill the directories of models, and load from them. Thread-safe; processes may share the folder."""

    def __init__(self, root: Path, components: ComponentStore, source_of: Callable[[ModelVariant], Remote]) -> None:
        """Open the folder `models` next to the components."""
        self.components = components
        self.sums = file_sums_in(root)
        self._root = root
        self._source_of = source_of
        with disk_errors(STORE):
            make_private_directory(root / "models")
            remove_abandoned((root / "models").glob("*/*.json.*"))

    def directory(self, model: ModelVariant) -> Path:
        """Return the directory of a model, which may not be there."""
        return self._place(model.digest) / model.name

    def prepare(self, model: ModelVariant) -> Path:
        """Make the directory of a model, with its texts; weights are fetched when it is loaded. Raises as `load`."""
        texts = tuple(file for file in model.stored_files if not file.path.endswith(_WEIGHTS))
        with self._held(model, texts):
            return self.directory(model)

    def load(self, model: ModelVariant, loader: Callable[[Path], T]) -> T:
        """Return what `loader` makes of the directory, with all files in it. Those with wrong bytes on disk are set
        aside and fetched once more. Raises CorruptComponent that names file and source, StoreFull for a model that does
        not fit, and the stores' errors."""
        with self._held(model, model.stored_files) as held:
            try:
                return loader(self.directory(model))
            except CorruptComponent as error:
                logger.warning("files of a model are fetched again: %s", error.message, extra={"model": model.name})
                for one in held:
                    self.components.set_aside_if_wrong(one)
        with self._held(model, model.stored_files):
            return loader(self.directory(model))

    def blob(self, file: ModelFile) -> Path:
        """Return the place of a file on the local disk."""
        return self._root / "blobs" / file.sha256

    def remembered(self, digest: str) -> ModelVariant | None:
        """Return the description of a model of that digest that was prepared here before."""
        try:
            return from_json(ModelVariant, json.loads((self._place(digest) / "model.json").read_text()))
        except (OSError, ValueError, PentimentoError):
            return None

    @contextmanager
    def alone(self, label: str) -> Iterator[None]:
        """Exclude other processes of this host from what the label names, during the block."""
        path = self._root / "models" / f"{sha256(label.encode()).hexdigest()[:32]}.lock"
        with ExitStack() as held:
            with disk_errors(STORE):
                held.enter_context(_locked(path, os.O_CREAT))
            yield

    def _place(self, digest: str) -> Path:
        return self._root / "models" / digest.removeprefix("sha256:")

    @contextmanager
    def _held(self, model: ModelVariant, files: tuple[ModelFile, ...]) -> Iterator[list[HeldBlob]]:
        """Fetch the files that are missing, link them, and keep them during the block."""
        with disk_errors(STORE):
            self._link(model)
        remote = self._source_of(model)

        def hold(file: ModelFile) -> HeldBlob:
            return held.enter_context(self.components.holding(_reference(model, file), remote))

        with ExitStack() as held:
            with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="model-files") as pool:
                running = [pool.submit(hold, file) for file in {file.sha256: file for file in files}.values()]
                try:
                    found = [one.result() for one in running]
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
            yield found

    def _link(self, model: ModelVariant) -> None:
        place, directory = self._place(model.digest), self.directory(model)
        place.mkdir(mode=0o700, exist_ok=True)
        # A full disk is ignored: models on it keep serving.
        with _locked(place), suppress(OSError):
            entries = [*_entries_of_others(place / "registry.json", model.name), _entry(model)]
            write_whole(place / "registry.json", json.dumps({"models": entries}).encode())
            write_whole(place / "model.json", json.dumps(to_json(model)).encode())
        for file in model.stored_files:
            link = directory / _inside(file.path)
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            target = os.path.relpath(self.blob(file), link.parent)
            with suppress(FileExistsError):
                link.symlink_to(target)


def open_folders(
    root: Path,
    disk_mib: int,
    rule: Callable[[], ComponentRule],
    objects_url: str = "",
    peers: Peers = no_peers,
) -> ModelFolders:
    """Return the directories of models in a component store; see `ComponentStore` for `peers`. Raises
    StoreUnavailable."""
    components = ComponentStore(root, disk_mib * 2**20, 0, rule, peers)
    return ModelFolders(root, components, lambda model: remote_of(model, objects_url))


@contextmanager
def _locked(path: Path, flags: int = os.O_RDONLY) -> Iterator[None]:
    """Exclude other processes and threads that lock the same file or directory, during the block."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _entry(model: ModelVariant) -> dict[str, Any]:
    """Return the entry of a model in the registry next to its directory."""
    entry = {"name": model.name, "path": model.name, "digest": model.digest, "licence": model.licence}
    if not model.default_steps:
        return entry
    return entry | {"default_steps": model.default_steps, "default_guidance_scale": model.default_guidance_scale}


def _entries_of_others(registry: Path, name: str) -> list[Any]:
    """Return the entries of other names of the same files."""
    try:
        return [entry for entry in json.loads(registry.read_text())["models"] if entry["path"] != name]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _reference(model: ModelVariant, file: ModelFile) -> ObjectReference:
    is_uploaded = model.source.startswith(OBJECTS_SOURCE)
    key = model.source.removeprefix(OBJECTS_SOURCE) + file.sha256 if is_uploaded else file.path
    return ObjectReference(key, file.digest, file.size_bytes)


def _inside(path: str) -> PurePosixPath:
    """Return a path below the model's directory. Raises InvalidArgument for any other."""
    found = PurePosixPath(path)
    if found.is_absolute() or ".." in found.parts or not found.parts or "\0" in path:
        raise InvalidArgument.of("model.files.path", f"must be a path below the model's directory, got {path[:80]!r}")
    return found
