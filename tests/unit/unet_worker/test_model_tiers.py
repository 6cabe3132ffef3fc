"""Test the tier of a worker's models: files on the local disk, or downloads from the store."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from pentimento.domain.components import Tier
from pentimento.domain.models import ModelFile, ModelVariant
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.stores.components.models import ModelFolders
from services.unet_worker.models.stored_models import StoredModels, local_tiers
from services.unet_worker.settings import UnetWorkerSettings

FILES = tuple(
    ModelFile(f"{name}.safetensors", f"{number}" * 64, size, ("b" * 64,))
    for number, (name, size) in enumerate((("unet", 700), ("vae", 50), ("text", 250)))
)


@dataclass
class Blobs:
    """Name the places of files, as `ModelFolders` does."""

    root: Path

    def blob(self, file: ModelFile) -> Path:
        return self.root / file.sha256


def settings(model: Path) -> UnetWorkerSettings:
    model.parent.mkdir(exist_ok=True)
    if not model.exists():
        model.write_text("")
    return UnetWorkerSettings(RpcServerSettings(), RpcChannelSettings(), model)


@pytest.mark.parametrize(
    ("there", "tiers"),
    [((), {Tier.STORE: 1000}), ((0, 2), {Tier.DISK: 950, Tier.STORE: 50}), ((0, 1, 2), {Tier.DISK: 1000})],
)
def test_tiers_of_stored_model_are_by_file(there: tuple[int, ...], tiers: dict[Tier, int], tmp_path: Path) -> None:
    """A file that another model has brought counts as on the disk."""
    for number in there:
        (tmp_path / FILES[number].sha256).write_bytes(b"")
    model = ModelVariant("m", "sha256:m", "", "", FILES, source="s3://bucket/m")
    stored = StoredModels(cast("ModelFolders", Blobs(tmp_path)), {tmp_path / "m": model})

    assert stored.tiers(settings(tmp_path / "m")) == tiers


def test_tiers_of_local_model_are_its_weights_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "a.safetensors").write_bytes(b"1234")
    (tmp_path / "b.gguf").write_bytes(b"12")
    (tmp_path / "model_index.json").write_text("{}")

    assert local_tiers(settings(tmp_path)) == {Tier.DISK: 6}
    assert local_tiers(settings(tmp_path / "b.gguf")) == {Tier.DISK: 2}
    assert local_tiers(settings(tmp_path / "pace.toml")) == {}
    assert StoredModels().tiers(settings(tmp_path)) == {Tier.DISK: 6}


def test_tiers_of_local_model_exclude_missing_files(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").symlink_to(tmp_path / "gone")
    worker = settings(tmp_path / "b.gguf")
    worker.model.unlink()

    assert local_tiers(settings(tmp_path)) == {}
    assert local_tiers(worker) == {}
