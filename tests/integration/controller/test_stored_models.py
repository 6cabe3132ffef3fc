"""Uploaded models: over a socket, into a real object store, and from there to a worker's disk."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.cli import cli
from pentimento.clients.controller import ModelRepositoryClient
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import digest_checkpoint
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.models import ModelFile, ModelVariant
from pentimento.files.file_sums import SumInProgress
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from pentimento.stores.ledger.fleet_ledger import open_fleet_ledger
from pentimento.stores.objects import open_objects
from services.controller.settings import ControllerSettings
from services.controller.wiring import ControllerProcess, wire
from services.unet_worker.models.stored_models import with_stored
from services.unet_worker.settings import UnetWorkerSettings


class Running(NamedTuple):
    process: ControllerProcess
    models: ModelRepositoryClient
    folder: Path

    @property
    def address(self) -> str:
        return f"unix:{self.folder / 'c'}"

    def stored(self) -> set[str]:
        """Return the sha256 of the stored files."""
        objects = open_objects(f"file://{self.folder / 'objects'}")
        return {key.rpartition("/")[2] for key in objects.keys("adapters/")}

    async def command(self, *words: str) -> Result:
        at = ("--controller-address", self.address, "--component-dir", str(self.folder / "described"))
        return await asyncio.to_thread(CliRunner().invoke, cli, ["models", *words, *at])


@asynccontextmanager
async def running(folder: Path, **flags: Any) -> AsyncIterator[Running]:
    url = f"sqlite:///{folder / 'fleet.sqlite'}"
    given = {"ledger_url": url, "objects_url": f"file://{folder / 'objects'}", **flags}
    settings = ControllerSettings(RpcServerSettings(listen=(f"unix:{folder / 'c'}",)), **given)
    ledger = open_fleet_ledger(url)
    process = wire(settings, ledger)
    await process.server.start()
    await process.warm()
    process.server.set_serving()
    try:
        async with open_channel(f"unix:{folder / 'c'}", RpcChannelSettings()) as channel:
            yield Running(process, ModelRepositoryClient(channel), folder)
    finally:
        await process.drain()
        await process.server.stop()
        ledger.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


async def test_directory_is_uploaded_and_a_worker_serves_it_by_name(folder: Path, checkpoint: Path) -> None:
    async with running(folder) as suite:
        added = await suite.command("add", "mine", str(checkpoint), "--licence", "MIT")
        assert added.exit_code == 0, added.output
        model = await suite.models.model("mine")
        (listed,) = (await suite.models.registered()).models
        given = UnetWorkerSettings(
            RpcServerSettings(),
            RpcChannelSettings(),
            Path("mine"),
            component_cache_dir=folder / "components",
            objects_url=f"file://{folder / 'objects'}",
            controller_address=suite.address,
        )
        settings, _ = await with_stored(given)

    digest = digest_checkpoint(check_checkpoint(checkpoint)).model
    assert (model.digest, listed, model.default_steps) == (digest, model.without_blocks, 50)
    assert suite.stored() == {file.sha256 for file in model.files}
    assert digest_checkpoint(check_checkpoint(settings.model)).model == digest
    assert settings.model_name == "mine"
    (entry,) = json.loads((settings.model.parent / "registry.json").read_text())["models"]
    assert (entry["licence"], entry["default_steps"]) == ("MIT", 50)


async def test_models_share_their_equal_files_and_a_removed_one_leaves_those_of_others(
    folder: Path, checkpoint: Path, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "other", prediction_type="v_prediction")
    async with running(folder) as suite:
        first = await suite.command("add", "first", str(checkpoint), "--licence", "MIT")
        second = await suite.command("add", "second", str(other), "--licence", "MIT")
        assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
        models = (await suite.models.registered()).models
        kept = {file.sha256 for file in models[0].files}
        assert kept != {file.sha256 for file in models[1].files}
        await suite.models.remove_model("second")
        uploads = suite.process.uploads
        assert uploads is not None
        await uploads.sweep(await uploads.sweep(frozenset()))

    assert suite.stored() == kept
    assert second.output.strip().endswith(f"{scheduler_bytes(models[1])} bytes uploaded")


def scheduler_bytes(model: ModelVariant) -> int:
    """Return the size of the second model's only file that the first does not have."""
    return next(file.size_bytes for file in model.files if file.path == "scheduler/scheduler_config.json")


async def test_local_model_stays_on_its_disk(folder: Path, checkpoint: Path) -> None:
    async with running(folder) as suite:
        added = await suite.command("add", "mine", str(checkpoint), "--local", "--licence", "MIT")
        model = await suite.models.model("mine")

    assert (added.exit_code, model.source, suite.stored()) == (0, "", set())
    assert all(not file.blocks for file in model.files)


async def test_model_beyond_the_workers_disk_is_rejected_before_it_is_uploaded(folder: Path, checkpoint: Path) -> None:
    padded = folder / "padded"
    for file in checkpoint.rglob("*"):
        if file.is_file():
            (padded / file.relative_to(checkpoint)).parent.mkdir(parents=True, exist_ok=True)
            (padded / file.relative_to(checkpoint)).write_bytes(file.read_bytes())
    (padded / "tokenizer" / "added_tokens.json").write_bytes(b" " * 2**20 + b"{}")
    async with running(folder, component_disk_mib=1) as suite:
        added = await suite.command("add", "mine", str(padded), "--licence", "MIT")

    assert isinstance(added.exception, FailedPrecondition)
    assert added.exception.reason == "COMPONENT_TOO_LARGE"
    assert "local disk" in added.exception.message
    assert suite.stored() == set()


DATA = b"\x02\0\0\0\0\0\0\0{}" + b"x" * 100


def file_of(data: bytes, path: str = "unet/w.safetensors") -> ModelFile:
    hashing = SumInProgress()
    hashing.add(data)
    found = hashing.result()
    return ModelFile(path, found.sha256, found.size_bytes, found.blocks)


@pytest.mark.parametrize(
    ("changed", "sent", "field"),
    [
        ({}, DATA[:-1], "file.size_bytes"),
        ({}, DATA + b"x", "file.size_bytes"),
        ({}, DATA[:-1] + b"y", "file.sha256"),
        ({"blocks": ("0" * 64,)}, DATA, "file.blocks"),
        ({"path": "unet/w.bin"}, DATA, "file.path"),
        ({"path": "../w.safetensors"}, DATA, "file.path"),
    ],
)
async def test_uploaded_file_must_be_the_announced_one(
    folder: Path, changed: dict[str, Any], sent: bytes, field: str
) -> None:
    async with running(folder) as suite:
        with pytest.raises(InvalidArgument) as raised:
            await suite.models.add_file(replace(file_of(DATA), **changed), [sent])

    assert [violation.field for violation in raised.value.violations] == [field]


async def test_uploaded_weights_must_be_safetensors(folder: Path) -> None:
    pickle = b"\x80\x04\x95" + b"x" * 100
    async with running(folder) as suite:
        with pytest.raises(InvalidArgument, match="must be a safetensors file"):
            await suite.models.add_file(file_of(pickle), [pickle])

    assert suite.stored() == set()


async def test_model_without_its_files_is_not_registered(folder: Path, checkpoint: Path) -> None:
    async with running(folder) as suite:
        await suite.command("add", "mine", str(checkpoint), "--licence", "MIT")
        model = replace(await suite.models.model("mine"), name="again")
        (lost,) = (file for file in model.files if file.path == "unet/diffusion_pytorch_model.safetensors")
        objects = open_objects(f"file://{folder / 'objects'}")
        objects.delete(f"{model.source.removeprefix('objects:')}{lost.sha256}")
        with pytest.raises(FailedPrecondition, match="unet/diffusion_pytorch_model") as raised:
            await suite.models.register_model(model)
        assert await suite.models.missing_files(model.files) == {lost.sha256}

    assert raised.value.reason == "FILES_MISSING"


async def test_unregistered_name_is_reported(folder: Path) -> None:
    async with running(folder) as suite:
        with pytest.raises(NotFound, match="no model 'absent' is registered"):
            await suite.models.model("absent")
