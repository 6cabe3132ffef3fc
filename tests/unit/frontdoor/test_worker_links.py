"""Workers with more than one address."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.held_models import HELD
from pentimento.dataplane.events import Event, WorkerLost, WorkerReported
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.execution import WorkerCredits
from pentimento.rpc import RpcChannelSettings, open_channel
from services.frontdoor.identity import Identity
from services.frontdoor.workers.catalogue import AdapterCatalogue, Catalogue
from services.frontdoor.workers.worker_links import LOOKS, WorkerLink, WorkerLinks, heard_within
from tests.support.logged import said_by

CREDITS = WorkerCredits("w1", HELD, 2, 0)
MOSAIC = Adapter("mosaic", AdapterKind.LORA, "sha256:mosaic", HELD.family)


class ScriptedLinks:
    """Links to addresses without a server; the test sends the workers' messages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.submitted: list[Event] = []
        parts = (Catalogue(""), AdapterCatalogue(), self.submitted.append, Identity("f", 1))
        self.links = WorkerLinks(lambda address: open_channel(address, RpcChannelSettings()), *parts, silence_s=600.0)

    def follow(self, *names: str) -> None:
        self.links.follow({self.address(name): True for name in names})

    def address(self, name: str) -> str:
        return f"unix:{self.folder / name}"

    def link(self, name: str) -> WorkerLink:
        return self.links._links[self.address(name)]

    def hear(self, name: str, adapters: tuple[Adapter, ...] | None = None, generation: int = 1) -> None:
        held = replace(HELD, worker_generation=generation)
        self.links._on_credits(self.link(name), replace(CREDITS, held=held, known_adapters=adapters))

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.submitted if isinstance(event, kind)]


@pytest.fixture
async def heard(tmp_path: Path) -> AsyncIterator[ScriptedLinks]:
    found = ScriptedLinks(tmp_path)
    yield found
    await found.links.close()


async def test_a_worker_that_has_moved_is_not_lost_with_its_first_address(heard: ScriptedLinks) -> None:
    heard.follow("first")
    heard.hear("first")
    runs = heard.link("first").runs
    runs.add(asyncio.ensure_future(asyncio.sleep(0)))
    watch = heard.links._watches[heard.address("first")]
    heard.follow("other")
    heard.hear("other")

    runs.clear()
    heard.hear("first")
    await asyncio.wait([watch])

    assert heard.links.address_of("w1") == heard.address("other")
    assert not heard.of(WorkerLost)


async def test_first_of_two_addresses_of_worker_is_used_until_lost(heard: ScriptedLinks) -> None:
    heard.follow("first", "other")

    for adapters in ((MOSAIC,), None):
        for name in ("first", "other"):
            heard.hear(name, adapters)

    assert heard.links.address_of("w1") == heard.address("first")
    assert len(heard.of(WorkerReported)) == 2
    heard.links._on_loss(heard.link("other"))
    assert not heard.of(WorkerLost)
    heard.links._on_loss(heard.link("first"))
    heard.hear("other")
    assert heard.links.address_of("w1") == heard.address("other")
    assert heard.of(WorkerReported)[-1].holdings.loras == {MOSAIC.digest}


async def test_that_two_workers_have_one_name_is_said_once(
    heard: ScriptedLinks, caplog: pytest.LogCaptureFixture
) -> None:
    heard.follow("first", "other")
    heard.hear("other", generation=2)

    for _ in range(3):
        heard.hear("first")
    heard.hear("other", generation=3)
    heard.hear("first")

    said = [(record.message, record.reason) for record in said_by("services.frontdoor.workers.worker_links", caplog)]
    assert said == [("two workers with one name", "REPLICA_SUPERSEDED")] * 2
    assert heard.links.address_of("w1") == heard.address("other")


SILENCE_S = 0.2


async def test_silent_worker_times_out() -> None:
    with pytest.raises(TimeoutError):
        async with heard_within(SILENCE_S):
            await asyncio.Event().wait()


async def test_worker_that_sends_now_and_then_does_not_time_out() -> None:
    async with heard_within(SILENCE_S) as silence:
        for _ in range(4 * LOOKS):
            await asyncio.sleep(SILENCE_S / LOOKS)
            silence.heard()


async def test_stopped_listener_reads_waiting_messages_first() -> None:
    async with heard_within(SILENCE_S) as silence:
        time.sleep(2 * SILENCE_S)  # noqa: ASYNC251 (everything stands still: that is the point)
        await asyncio.sleep(0)
        silence.heard()
        await asyncio.sleep(0)


async def test_nothing_is_watched_after_the_block() -> None:
    async with heard_within(SILENCE_S) as silence:
        silence.heard()

    await asyncio.sleep(2 * SILENCE_S)
