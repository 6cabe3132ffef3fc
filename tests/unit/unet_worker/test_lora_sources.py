"""Test LoRAs of the object store on a worker's disk, and loads ahead of need."""

import asyncio
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lab.fixtures.lora_files import write_tensors
from pentimento.diffusion.loras import BadLora, BaseLayers, Lora
from pentimento.domain.adapters import Adapter, AdapterKind, LoraUpload
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.generation import LoraSelection, ObjectReference
from pentimento.files.ed25519_keys import read_private_key
from pentimento.files.signed_entries import TrustedEntries, signed_upload
from pentimento.policies.components import Utility
from pentimento.stores.components import ComponentStore
from pentimento.stores.components.store import LocalComponents
from pentimento.stores.errors import ObjectMissing
from pentimento.stores.objects import ObjectStore, open_objects
from services.unet_worker.adapters.lora_shelf import LoraShelf
from services.unet_worker.adapters.uploaded_loras import UploadedLoras
from tests.unit.files.test_signed_entries import Keys
from tests.unit.unet_worker.orders import ROUTE, SPEC

BASE = BaseLayers("sd", "unet", {"unet": {"proj": (6, 8)}})


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_objects(f"file://{tmp_path / 'objects'}")


def stored(objects: ObjectStore, folder: Path, value: float, module: str = "proj") -> LoraSelection:
    tensors = {
        f"unet.{module}.lora_A.weight": torch.full((2, 8), value),
        f"unet.{module}.lora_B.weight": torch.ones(6, 2),
    }
    reference = objects.put(f"adapters/{value:.0f}", write_tensors(folder / "made.safetensors", tensors).read_bytes())
    return LoraSelection(f"lora-{value:.0f}", 1.0, reference.digest, reference)


def uploaded(objects: ObjectStore, folder: Path, max_bytes: int = 1 << 20) -> UploadedLoras:
    return UploadedLoras(local(objects, folder, max_bytes), BASE, torch.float32)


def local(objects: ObjectStore, folder: Path, max_bytes: int) -> LocalComponents:
    return LocalComponents(ComponentStore(folder / "components", max_bytes, 0, Utility), objects, max_bytes)


def on_disk(folder: Path) -> set[str]:
    return {f"sha256:{file.name}" for file in (folder / "components" / "blobs").iterdir()}


def reference_of(lora: LoraSelection) -> ObjectReference:
    assert lora.object is not None
    return lora.object


def test_read_fetches_once_and_again_when_the_file_is_another(objects: ObjectStore, tmp_path: Path) -> None:
    lora, loras = stored(objects, tmp_path, 3.0), uploaded(objects, tmp_path)
    loras.ask(lora)
    assert loras.read(lora.digest).digest == lora.digest
    assert loras.name_of(lora.digest) == "lora-3"
    (kept,) = (tmp_path / "components" / "blobs").iterdir()
    kept.write_bytes(objects.get(reference_of(stored(objects, tmp_path, 4.0))))

    for _ in range(2):
        assert torch.equal(loras.read(lora.digest).components["unet"]["proj"].down, torch.full((2, 8), 3.0))
        objects.delete(reference_of(lora).key)


@pytest.mark.parametrize("used_again", [0, 1])
def test_less_used_lora_makes_room(objects: ObjectStore, tmp_path: Path, used_again: int) -> None:
    some = [stored(objects, tmp_path, float(number)) for number in range(3)]
    loras = uploaded(objects, tmp_path, 2 * reference_of(some[0]).size_bytes)
    for lora in some[:2]:
        loras.ask(lora)
        loras.read(lora.digest)
    (tmp_path / "components" / "partial" / "half").write_bytes(b"half")

    loras.read(some[used_again].digest)
    loras.ask(some[2])
    loras.read(some[2].digest)

    assert on_disk(tmp_path) == {some[used_again].digest, some[2].digest}
    assert list((tmp_path / "components" / "partial").iterdir()) == []


def test_components_are_prefetched_while_they_fit(objects: ObjectStore, tmp_path: Path) -> None:
    some = [reference_of(stored(objects, tmp_path, float(number))) for number in range(3)]
    large = objects.put("adapters/large", bytes(some[0].size_bytes + 1))
    components = local(objects, tmp_path, 2 * some[0].size_bytes)
    components.fetch_ahead(some[:1])
    objects.delete(some[0].key)

    components.fetch_ahead([large, *some])

    assert on_disk(tmp_path) == {some[0].digest, some[1].digest}


def test_fetch_ahead_ends_with_the_first_failure(objects: ObjectStore, tmp_path: Path) -> None:
    some = [reference_of(stored(objects, tmp_path, float(number))) for number in range(2)]
    objects.delete(some[0].key)

    local(objects, tmp_path, 1 << 20).fetch_ahead(some)

    assert on_disk(tmp_path) == set()


def test_lora_over_the_bound_is_used_and_not_kept(objects: ObjectStore, tmp_path: Path) -> None:
    lora, loras = stored(objects, tmp_path, 3.0), uploaded(objects, tmp_path, max_bytes=8)
    loras.ask(lora)

    assert loras.read(lora.digest).digest == lora.digest
    assert on_disk(tmp_path) == set()


def test_lora_of_other_model_is_refused_by_keys(objects: ObjectStore, tmp_path: Path) -> None:
    lora, loras = stored(objects, tmp_path, 3.0, module="stranger"), uploaded(objects, tmp_path)
    loras.ask(lora)

    with pytest.raises(BadLora, match="lora-3: of 2 keys 2 match no layer of this sd model"):
        loras.read(lora.digest)


def test_missing_lora_is_reported(objects: ObjectStore, tmp_path: Path) -> None:
    lora, loras = stored(objects, tmp_path, 3.0), uploaded(objects, tmp_path)
    objects.delete(reference_of(lora).key)
    loras.ask(lora)

    with pytest.raises(ObjectMissing):
        loras.read(lora.digest)


def test_directory_lora_has_no_uploaded_name(objects: ObjectStore, tmp_path: Path) -> None:
    loras = uploaded(objects, tmp_path)

    loras.ask(LoraSelection("neon", 1.0, "sha256:n"))

    assert loras.name_of("sha256:n") is None


def signed(lora: LoraSelection, keys: Keys) -> LoraSelection:
    upload = LoraUpload(lora.name, BASE.family, "MIT", reference_of(lora).size_bytes, lora.digest)
    entry = signed_upload(upload, read_private_key(keys.private("first"), "signing_key"), 1000).signed_entry
    return replace(lora, signed_entry=entry)


def trusting(objects: ObjectStore, folder: Path) -> tuple[UploadedLoras, LoraSelection]:
    """Return uploaded LoRAs of a worker with public keys, and a signed one."""
    keys = Keys(folder)
    components, trusted = local(objects, folder, 1 << 20), TrustedEntries(keys.public("first"))
    loras = UploadedLoras(components, BASE, torch.float32, "sha256:model", trusted)
    return loras, signed(stored(objects, folder, 3.0), keys)


def test_worker_with_keys_reads_signed_loras_only(objects: ObjectStore, tmp_path: Path) -> None:
    loras, lora = trusting(objects, tmp_path)

    with pytest.raises(FailedPrecondition) as unsigned:
        loras.ask(replace(lora, signed_entry=""))
    assert (unsigned.value.reason, loras.name_of(lora.digest)) == ("UNSIGNED_ENTRY", None)
    loras.ask(lora)
    assert loras.read(lora.digest).digest == lora.digest
    # In memory by now, and under a name that was not signed.
    with pytest.raises(FailedPrecondition) as renamed:
        loras.ask(replace(lora, name="other"))
    assert (renamed.value.reason, loras.name_of(lora.digest)) == ("BAD_SIGNATURE", lora.name)


async def test_unsigned_lora_of_a_plan_is_skipped(
    objects: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loras, lora = trusting(objects, tmp_path)
    other = stored(objects, tmp_path, 4.0)
    planned = [
        Adapter(one.name, AdapterKind.LORA, one.digest, BASE.family, object=one.object, signed_entry=one.signed_entry)
        for one in (other, lora)
    ]
    shelf = LoraShelf(None, 1 << 20, lambda: None, loras)
    try:
        await shelf.prefetch((), planned)

        assert shelf.resident_names == (lora.name,)
        assert on_disk(tmp_path) == {lora.digest}
        assert "a LoRA was not prefetched: lora-4: its entry is not signed" in caplog.text
    finally:
        shelf.close()


NAMES = ("first", "second", "third")


class SlowLoras:
    """Read files of a directory once `goes_on` is set; `began` lists the reads."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.began: list[str] = []
        self.refuses = False
        self.adapters = tuple(Adapter(name, AdapterKind.LORA, f"digest of {name}", "tiny") for name in NAMES)
        self.rejected = ()
        self.sizes = dict.fromkeys(NAMES, 1)

    def names_of(self, digests: Collection[str]) -> tuple[str, ...]:
        return tuple(adapter.name for adapter in self.adapters if adapter.digest in digests)

    def read(self, digest: str) -> Lora:
        self.began.append(digest)
        self.goes_on.wait()
        if self.refuses:
            raise BadLora("no LoRA")
        return Lora(digest, 1, {})


async def test_prefetched_lora_serves_image_after_prefetcher_left() -> None:
    """One is loaded ahead at a time, so the request's load has a thread while the first one is read."""
    directory = SlowLoras()
    shelf = LoraShelf(directory, 1 << 20, lambda: None)
    try:
        ahead = asyncio.create_task(shelf.prefetch(NAMES))
        await asyncio.sleep(0)
        source = shelf.source(replace(SPEC, loras=(LoraSelection("third", 1.0, "digest of third"),)), ROUTE)
        assert source is not None

        async with asyncio.timeout(60):
            while len(directory.began) < 2:  # noqa: ASYNC110 - other threads
                await asyncio.sleep(0.01)
        assert sorted(directory.began) == ["digest of first", "digest of third"]
        ahead.cancel()
        await asyncio.wait([ahead])
        directory.goes_on.set()

        while (taken := source.take(0)) is None:  # noqa: ASYNC110 - other threads
            await asyncio.sleep(0.01)  # not a spin: the loader's threads need the processor
        assert [one.lora.digest for one in taken] == ["digest of third"]
    finally:
        directory.goes_on.set()
        shelf.close()


async def test_failed_prefetch_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    directory = SlowLoras()
    shelf = LoraShelf(directory, 1 << 20, lambda: None)
    try:
        directory.refuses = True
        directory.goes_on.set()

        await shelf.prefetch(NAMES)

        assert [record.message for record in caplog.records if "prefetched" in record.message] == [
            "a LoRA was not prefetched: no LoRA"
        ] * len(NAMES)
    finally:
        shelf.close()


async def test_prefetch_ends_with_the_memory_for_loras() -> None:
    directory = SlowLoras()
    directory.goes_on.set()
    shelf = LoraShelf(directory, 2, lambda: None)
    try:
        await shelf.prefetch(NAMES)

        assert directory.began == ["digest of first", "digest of second"]
    finally:
        shelf.close()
