"""Test a worker that copies LoRAs and models from another worker's disk, before and when a request needs them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lab.fixtures.lora_files import random_factors, write_kohya_lora
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import digest_checkpoint
from pentimento.diffusion.families import load_model
from pentimento.diffusion.loras import layers_of
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.generation import LoraSelection, ObjectReference
from pentimento.files.file_sums import FileSums
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.stores.components.remote import put_sums
from pentimento.stores.objects import open_objects
from services.controller.settings import ControllerSettings
from services.controller.wiring import ControllerProcess, wire
from services.unet_worker.models.stored_models import with_stored
from services.unet_worker.settings import UnetWorkerSettings
from tests.integration.controller.test_stored_models import running
from tests.integration.unet_worker.conftest import Served, serve
from tests.integration.unet_worker.requests import attempt, route, spec_with
from tests.support.calls import result_of
from tests.support.processes import StartedProcesses
from tests.support.waiting import until


@pytest.fixture
def processes() -> Iterator[StartedProcesses]:
    started = StartedProcesses()
    yield started
    started.end()


@asynccontextmanager
async def controlled(folder: Path) -> AsyncIterator[ControllerProcess]:
    process = wire(ControllerSettings(RpcServerSettings(listen=(f"unix:{folder / 'c'}",)), lease_s=60.0))
    await process.server.start()
    await process.warm()
    yield process
    await process.drain()
    await process.server.stop()


def on_disk(worker: Path) -> list[str]:
    return [f"sha256:{path.name}" for path in (worker / "components" / "blobs").iterdir()]


async def digest_of_image(worker: Served, lora: LoraSelection) -> str:
    execution = worker.client.execute(
        attempt(1), spec_with(loras=(lora,)), route(worker), worker.held.worker_generation
    )
    return (await result_of(execution)).image_digest


@pytest.mark.parametrize("is_used_most", [True, False])
async def test_lora_comes_from_a_worker_that_holds_it_once_the_store_has_lost_it(
    checkpoint: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, is_used_most: bool
) -> None:
    monkeypatch.setattr("pentimento.service.components.LOOK_S", 0.05)
    places = [directory / name for name in ("a", "b")]
    shared = {"controller_address": f"unix:{directory / 'c'}", "objects_url": f"file://{places[0] / 'objects'}"}
    for place in places:
        place.mkdir()
    own = [{"component_cache_dir": place / "components", **shared} for place in places]
    async with controlled(directory) as process, serve(checkpoint, places[0], **own[0]) as first:
        reference = stored(first, checkpoint, directory)
        lora = LoraSelection("mosaic", 1.0, reference.digest, reference)
        expected = await digest_of_image(first, lora)
        controller = process.controller

        def is_known() -> bool:
            # Otherwise the next report comes after a third of the long lease.
            assert first.process.registration is not None
            first.process.registration.report_soon()
            return bool(controller.find_components("", (reference.digest,), ""))

        await until(is_known)
        first.objects.delete(reference.key)
        adapter = Adapter("mosaic", AdapterKind.LORA, lora.digest, first.held.family, object=reference)
        monkeypatch.setattr(controller._planner, "most_used", lambda model: [adapter] if is_used_most else [])

        async with serve(checkpoint, places[1], **own[1]) as second:
            if is_used_most:
                await until(lambda: on_disk(places[1]) == [reference.digest])
            assert await digest_of_image(second, lora) == expected

    assert on_disk(places[1]) == [reference.digest]


async def test_model_comes_from_a_process_that_holds_it_once_the_store_has_lost_it(
    checkpoint: Path, directory: Path, processes: StartedProcesses
) -> None:
    async with running(directory, lease_s=60.0) as suite:
        added = await suite.command("add", "mine", str(checkpoint), "--licence", "MIT")
        assert added.exit_code == 0, added.output
        await with_stored(settings_of(directory, "a", suite.address))
        at = ("--listen", f"unix:{directory / 'peer'}", "--controller", suite.address)
        processes.start("tests.support.component_peer", "--directory", str(directory / "a"), *at)
        model = await suite.models.model("mine")
        digests = tuple({file.digest for file in model.files})
        await until(lambda: len(suite.process.controller.find_components("", digests, "")) == len(digests))
        objects = open_objects(f"file://{directory / 'objects'}")
        for key in list(objects.keys("adapters/")):
            objects.delete(key)

        settings, _ = await with_stored(settings_of(directory, "b", suite.address))

    assert digest_checkpoint(check_checkpoint(settings.model)).model == model.digest
    assert settings.model.is_relative_to(directory / "b")


def settings_of(directory: Path, name: str, controller_address: str) -> UnetWorkerSettings:
    return UnetWorkerSettings(
        RpcServerSettings(),
        RpcChannelSettings(),
        Path("mine"),
        component_cache_dir=directory / name,
        objects_url=f"file://{directory / 'objects'}",
        controller_address=controller_address,
    )


def stored(worker: Served, checkpoint: Path, folder: Path) -> ObjectReference:
    """Put a LoRA into the object store, as a controller does with an upload."""
    model = load_model(checkpoint, torch.device("cpu"), torch.float32)
    factors = random_factors(layers_of(model.info.family, model.adaptable), components=["unet"])
    file = write_kohya_lora(folder / "mosaic.safetensors", factors, alpha=2.0)
    blocks_digest = put_sums(worker.objects, "adapters/mosaic", FileSums().of(file).blocks)
    return replace(worker.objects.put("adapters/mosaic", file.read_bytes()), blocks_digest=blocks_digest)
