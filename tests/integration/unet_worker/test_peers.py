"""A worker takes LoRAs from the disk of another one, before and when a request needs them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lab.fixtures.lora_files import random_factors, write_kohya_lora
from pentimento.diffusion.families import load_model
from pentimento.diffusion.loras import layers_of
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.generation import LoraSelection, ObjectReference
from pentimento.files.file_sums import FileSums
from pentimento.rpc import RpcServerSettings
from pentimento.stores.components.remote import put_sums
from services.controller.settings import ControllerSettings
from services.controller.wiring import ControllerProcess, wire
from tests.integration.unet_worker.conftest import Served, serve
from tests.integration.unet_worker.requests import attempt, route, spec_with
from tests.support.calls import result_of
from tests.support.waiting import until


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
            # Else the next report comes after a third of the long lease.
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


def stored(worker: Served, checkpoint: Path, folder: Path) -> ObjectReference:
    """Put a LoRA into the object store, as a controller does with an upload."""
    model = load_model(checkpoint, torch.device("cpu"), torch.float32)
    factors = random_factors(layers_of(model.info.family, model.adaptable), components=["unet"])
    file = write_kohya_lora(folder / "mosaic.safetensors", factors, alpha=2.0)
    blocks_digest = put_sums(worker.objects, "adapters/mosaic", FileSums().of(file).blocks)
    return replace(worker.objects.put("adapters/mosaic", file.read_bytes()), blocks_digest=blocks_digest)
