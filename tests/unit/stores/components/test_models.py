"""Directories of models with components as files: links, fetched once, shared, and fetched again after corruption."""

import fcntl
import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument, NotFound, PentimentoError
from pentimento.domain.generation import ObjectReference
from pentimento.domain.models import OBJECTS_SOURCE, ModelFile, ModelVariant, digest_of
from pentimento.files.file_sums import CorruptComponent, FileSums, SumInProgress
from pentimento.policies.components import Utility
from pentimento.stores.components import ComponentStore
from pentimento.stores.components.models import ModelFolders, remote_of
from pentimento.stores.components.remote import Remote
from pentimento.stores.errors import StoreFull
from pentimento.stores.objects import ObjectStore, open_objects

WEIGHTS = b"weights" * 1000
MODEL = {"model_index.json": b"{}", "unet/w.safetensors": WEIGHTS, "vae/w.safetensors": b"vae" * 500}


class CountedSource:
    """The files of a model in their object store, and the keys that were read."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self.name = remote.name
        self.sums = remote.sums
        self.keys: list[str] = []

    def read_into(self, reference: ObjectReference, offset: int, buffer: memoryview) -> None:
        self.keys.append(reference.key)
        self._remote.read_into(reference, offset, buffer)


class Host:
    """A component store with directories of models, and the sources of its reads."""

    def __init__(self, folder: Path, disk_bytes: int = 100_000) -> None:
        self.root = folder / "components"
        self.url = f"file://{folder / 'objects'}"
        self.sources: list[CountedSource] = []
        components = ComponentStore(self.root, disk_bytes, 0, Utility)
        self.folders = ModelFolders(self.root, components, self._source)

    def _source(self, model: ModelVariant) -> Remote:
        self.sources.append(CountedSource(remote_of(model, self.url)))
        return self.sources[-1]

    def keys(self) -> list[str]:
        return sorted(key for source in self.sources for key in source.keys)

    def blob(self, data: bytes) -> Path:
        return self.root / "blobs" / file_of("any", data).sha256


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_objects(f"file://{tmp_path / 'objects'}")


def file_of(path: str, data: bytes) -> ModelFile:
    hashing = SumInProgress()
    hashing.add(data)
    found = hashing.result()
    return ModelFile(path, found.sha256, found.size_bytes, found.blocks)


def stored(objects: ObjectStore, name: str, contents: dict[str, bytes]) -> ModelVariant:
    files = tuple(file_of(path, data) for path, data in contents.items())
    for file, data in zip(files, contents.values(), strict=True):
        objects.put(f"models/{file.sha256}", data)
    model = ModelVariant(name, digest_of(files), "stable_diffusion", "MIT", files, source=f"{OBJECTS_SOURCE}models/")
    return replace(model, default_steps=7, default_guidance_scale=2.5)


def contents_of(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_prepared_model_has_its_texts_and_loads_the_rest_once(host: Host, objects: ObjectStore) -> None:
    model = stored(objects, "mine", MODEL)

    directory = host.folders.prepare(model)

    assert contents_of(directory) == {"model_index.json": b"{}"}
    assert [host.folders.load(model, contents_of) for _ in range(2)] == [MODEL, MODEL]
    assert host.keys() == sorted(f"models/{file.sha256}" for file in model.files)
    (entry,) = json.loads((directory.parent / "registry.json").read_text())["models"]
    assert entry == {
        "name": "mine", "path": "mine", "digest": model.digest, "licence": "MIT",
        "default_steps": 7, "default_guidance_scale": 2.5,
    }  # fmt: skip
    assert host.folders.remembered(model.digest) == model


def test_models_share_equal_files(host: Host, objects: ObjectStore) -> None:
    first = stored(objects, "first", MODEL)
    second = stored(objects, "second", {**MODEL, "unet/w.safetensors": b"other"})
    host.folders.load(first, contents_of)
    before = len(host.keys())

    found = host.folders.load(second, contents_of)

    assert found == {**MODEL, "unet/w.safetensors": b"other"}
    assert len(host.keys()) == before + 1


def test_names_of_the_same_files_keep_their_entries(host: Host, objects: ObjectStore) -> None:
    for name in ("one", "two", "one"):
        directory = host.folders.prepare(stored(objects, name, MODEL))

    entries = json.loads((directory.parent / "registry.json").read_text())["models"]
    assert sorted(entry["path"] for entry in entries) == ["one", "two"]


def test_names_prepared_at_once_keep_their_entries(host: Host, objects: ObjectStore) -> None:
    one, two = (stored(objects, name, MODEL) for name in ("one", "two"))
    place = host.folders.prepare(one).parent
    entries = json.loads((place / "registry.json").read_text())["models"]
    # Another process, which has read the entries and is about to write them with its own.
    lock = os.open(place, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    preparing = threading.Thread(target=host.folders.prepare, args=(two,))
    preparing.start()
    preparing.join(0.2)

    (place / "registry.json").write_text(json.dumps({"models": [*entries, {**entries[0], "path": "three"}]}))
    os.close(lock)
    preparing.join()

    entries = json.loads((place / "registry.json").read_text())["models"]
    assert sorted(entry["path"] for entry in entries) == ["one", "three", "two"]


def test_load_that_finds_wrong_bytes_fetches_the_file_again(host: Host, objects: ObjectStore) -> None:
    model = stored(objects, "mine", MODEL)
    host.folders.load(model, contents_of)
    host.blob(WEIGHTS).chmod(0o600)
    host.blob(WEIGHTS).write_bytes(WEIGHTS[::-1])

    def verified(directory: Path) -> dict[str, bytes]:
        found = contents_of(directory)
        if found != MODEL:
            raise CorruptComponent("unet/w.safetensors", "the file", "block 0")
        return found

    assert host.folders.load(model, verified) == MODEL
    assert host.keys().count(f"models/{file_of('', WEIGHTS).sha256}") == 2
    assert len(list((host.root / "quarantine").iterdir())) == 1


def test_sums_of_components_equal_registration(host: Host, objects: ObjectStore) -> None:
    model = stored(objects, "mine", MODEL)
    directory = host.folders.load(model, lambda directory: directory)

    known = FileSums(host.root / "files").known(directory / "unet" / "w.safetensors")

    assert known is not None
    assert (known.digest, known.blocks) == (model.files[1].digest, model.files[1].blocks)


def other_bytes(objects: ObjectStore, key: str) -> None:
    objects.put(key, WEIGHTS[::-1])


def fewer_bytes(objects: ObjectStore, key: str) -> None:
    objects.put(key, WEIGHTS[:-1])


def no_bytes(objects: ObjectStore, key: str) -> None:
    objects.delete(key)


@pytest.mark.parametrize(
    ("change", "error"),
    [(other_bytes, CorruptComponent), (fewer_bytes, CorruptComponent), (no_bytes, NotFound)],
)
def test_source_that_changed_under_its_digest_is_named(
    host: Host, objects: ObjectStore, change: Callable[[ObjectStore, str], None], error: type[PentimentoError]
) -> None:
    model = stored(objects, "mine", MODEL)
    change(objects, f"models/{model.files[1].sha256}")

    with pytest.raises(error) as raised:
        host.folders.load(model, contents_of)

    assert model.files[1].digest in raised.value.message
    assert "the object store" in raised.value.message
    assert not host.blob(WEIGHTS).exists()
    assert host.folders.load(stored(objects, "mine", MODEL), contents_of) == MODEL


def test_model_larger_than_the_disk_is_rejected_by_tier(tmp_path: Path, objects: ObjectStore) -> None:
    host = Host(tmp_path, disk_bytes=1000)

    with pytest.raises(StoreFull, match="the 1000 of the local disk"):
        host.folders.load(stored(objects, "mine", MODEL), contents_of)


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "unet/../../outside", ""])
def test_path_out_of_the_directory_is_rejected(host: Host, objects: ObjectStore, path: str) -> None:
    with pytest.raises(InvalidArgument, match=r"model\.files\.path"):
        host.folders.prepare(stored(objects, "mine", {path: b"x"}))
