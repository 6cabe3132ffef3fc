"""LoRAs of the object store on a worker's disk: fetched once, digested each time, bounded."""

import os
from pathlib import Path

import pytest
import torch

from lab.fixtures.lora_files import write_tensors
from pentimento.diffusion.loras import BadLora, BaseLayers
from pentimento.domain.generation import LoraSelection, ObjectReference
from pentimento.stores.errors import ObjectMissing
from pentimento.stores.objects import ObjectStore, open_objects
from services.unet_worker.adapters.uploaded_loras import UploadedLoras

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
    return UploadedLoras(objects, folder / "cache", max_bytes, BASE, torch.float32)


def reference_of(lora: LoraSelection) -> ObjectReference:
    assert lora.object is not None
    return lora.object


def test_it_is_fetched_once(objects: ObjectStore, tmp_path: Path) -> None:
    lora, loras = stored(objects, tmp_path, 3.0), uploaded(objects, tmp_path)
    loras.ask(lora)

    first = loras.read(lora.digest)
    objects.delete(reference_of(lora).key)

    assert (first.digest, loras.name_of(lora.digest)) == (lora.digest, "lora-3")
    again = loras.read(lora.digest)
    assert torch.equal(again.components["unet"]["proj"].down, torch.full((2, 8), 3.0))


def test_another_file_in_its_place_is_not_believed(objects: ObjectStore, tmp_path: Path) -> None:
    lora, loras = stored(objects, tmp_path, 3.0), uploaded(objects, tmp_path)
    loras.ask(lora)
    loras.read(lora.digest)
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(objects.get(reference_of(stored(objects, tmp_path, 4.0))))

    assert torch.equal(loras.read(lora.digest).components["unet"]["proj"].down, torch.full((2, 8), 3.0))


def test_what_was_used_longest_ago_makes_room(objects: ObjectStore, tmp_path: Path) -> None:
    some = [stored(objects, tmp_path, float(number)) for number in range(3)]
    size_bytes = reference_of(some[0]).size_bytes
    loras = uploaded(objects, tmp_path, 2 * size_bytes)
    for age, lora in enumerate(some[:2]):
        loras.ask(lora)
        loras.read(lora.digest)
        os.utime(tmp_path / "cache" / f"{lora.digest.removeprefix('sha256:')}.safetensors", (age, age))
    (tmp_path / "cache" / "tmphalf").write_bytes(b"half")

    loras.ask(some[2])
    loras.read(some[2].digest)

    left = {file.stem for file in (tmp_path / "cache").iterdir()}
    assert left == {lora.digest.removeprefix("sha256:") for lora in some[1:]}


def test_one_that_was_used_again_stays_longer(objects: ObjectStore, tmp_path: Path) -> None:
    some = [stored(objects, tmp_path, float(number)) for number in range(3)]
    loras = uploaded(objects, tmp_path, 2 * reference_of(some[0]).size_bytes)
    for age, lora in enumerate(some[:2]):
        loras.ask(lora)
        loras.read(lora.digest)
        os.utime(tmp_path / "cache" / f"{lora.digest.removeprefix('sha256:')}.safetensors", (age, age))

    loras.read(some[0].digest)
    loras.ask(some[2])
    loras.read(some[2].digest)

    left = {file.stem for file in (tmp_path / "cache").iterdir()}
    assert left == {some[index].digest.removeprefix("sha256:") for index in (0, 2)}


def test_one_that_is_larger_than_the_bound_is_painted_with_and_not_kept(objects: ObjectStore, tmp_path: Path) -> None:
    lora, loras = stored(objects, tmp_path, 3.0), uploaded(objects, tmp_path, max_bytes=8)
    loras.ask(lora)

    assert loras.read(lora.digest).digest == lora.digest
    assert list((tmp_path / "cache").iterdir()) == []


def test_one_of_another_model_is_refused_by_its_keys(objects: ObjectStore, tmp_path: Path) -> None:
    lora, loras = stored(objects, tmp_path, 3.0, module="stranger"), uploaded(objects, tmp_path)
    loras.ask(lora)

    with pytest.raises(BadLora, match="lora-3: of 2 keys 2 match no layer of this sd model"):
        loras.read(lora.digest)


def test_one_that_is_gone_says_so(objects: ObjectStore, tmp_path: Path) -> None:
    lora, loras = stored(objects, tmp_path, 3.0), uploaded(objects, tmp_path)
    objects.delete(reference_of(lora).key)
    loras.ask(lora)

    with pytest.raises(ObjectMissing):
        loras.read(lora.digest)


def test_one_of_a_directory_is_none_of_its_own(objects: ObjectStore, tmp_path: Path) -> None:
    loras = uploaded(objects, tmp_path)

    loras.ask(LoraSelection("neon", 1.0, "sha256:n"))

    assert loras.name_of("sha256:n") is None
