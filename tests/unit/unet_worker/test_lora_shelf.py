"""LoRAs that are loaded ahead of need, beside pictures that wait for the same ones."""

import asyncio
import threading
from collections.abc import Collection
from dataclasses import replace

import pytest

from pentimento.diffusion.loras import BadLora, Lora
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.generation import LoraSelection
from services.unet_worker.adapters.lora_shelf import LoraShelf
from tests.unit.unet_worker.orders import ROUTE, SPEC

NAMES = ("first", "second", "third")


class SlowLoras:
    """A directory whose files are read once `goes_on` is set."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.refuses = False
        self.adapters = tuple(Adapter(name, AdapterKind.LORA, f"digest of {name}", "tiny") for name in NAMES)

    def names_of(self, digests: Collection[str]) -> tuple[str, ...]:
        return tuple(adapter.name for adapter in self.adapters if adapter.digest in digests)

    def read(self, digest: str) -> Lora:
        self.goes_on.wait()
        if self.refuses:
            raise BadLora("no LoRA")
        return Lora(digest, 1, {})


async def test_a_picture_has_its_lora_though_whoever_had_it_loaded_ahead_has_left() -> None:
    """Two are read at once: the third one waits for its turn when its prefetch is given up."""
    directory = SlowLoras()
    shelf = LoraShelf(directory, 1 << 20, lambda: None)
    try:
        ahead = asyncio.create_task(shelf.prefetch(NAMES))
        await asyncio.sleep(0)
        source = shelf.source(replace(SPEC, loras=(LoraSelection("third", 1.0, "digest of third"),)), ROUTE)
        assert source is not None

        ahead.cancel()
        await asyncio.wait([ahead])
        directory.goes_on.set()

        while (taken := source.take(0)) is None:  # noqa: ASYNC110 - other threads
            await asyncio.sleep(0.01)  # not a spin: the loader's threads need the processor
        assert [one.lora.digest for one in taken] == ["digest of third"]
    finally:
        directory.goes_on.set()
        shelf.close()


async def test_what_could_not_be_loaded_ahead_is_nobodys_error(caplog: pytest.LogCaptureFixture) -> None:
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
