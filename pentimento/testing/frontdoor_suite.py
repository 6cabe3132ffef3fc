"""A frontdoor in this process, with real sockets, a real SQLite journal and a real object store on disk."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.image import ImageClient
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, ImageRequest
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from pentimento.stores.ledger import open_journal
from pentimento.testing.laid_ledgers import lay_tables
from services.frontdoor.process import Frontdoor
from services.frontdoor.settings import FrontdoorSettings
from services.frontdoor.wiring import wire

REQUEST = ImageRequest(prompt="a red circle", num_inference_steps=3, seed=1)


class FrontdoorSuite:
    """What a test needs of a running frontdoor."""

    def __init__(self, folder: Path, frontdoor: Frontdoor, client: ImageClient, operator: FrontdoorClient) -> None:
        self.folder = folder
        self.frontdoor = frontdoor
        self.client = client
        self.operator = operator

    async def paint(self, request: ImageRequest = REQUEST, **options: Any) -> Completed:
        *_, last = [event async for event in self.client.generate(request, **options)]
        assert isinstance(last, Completed)
        return last

    async def events(self, request: ImageRequest = REQUEST, **options: Any) -> list[GenerateEvent]:
        return [event async for event in self.client.generate(request, **options)]

    async def wait_for_workers(self, count: int) -> None:
        """Until the frontdoor sees so many."""
        while True:
            if sum(view.connected for view in (await self.operator.status()).workers) == count:
                return
            await asyncio.sleep(0.01)

    async def accepted(self, stream: AsyncIterator[GenerateEvent]) -> str:
        event = await anext(stream)
        assert isinstance(event, Accepted)
        return event.request_id


async def until(condition: Callable[[], bool]) -> None:
    """Returns once it holds."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.01)


def settings_of(
    folder: Path, token_file: Path | None = None, tls: dict[str, Any] | None = None, **changes: Any
) -> FrontdoorSettings:
    """`tls`: what it shows on a free port of this machine, beside its socket; nothing where it is empty."""
    values: dict[str, Any] = {
        "ledger_url": f"sqlite:///{folder / 'journal.sqlite'}",
        "objects_url": f"file://{folder / 'objects'}",
        "worker_addresses": (f"unix:{folder / 'w1'}",),
        "worker_wait_s": 60.0,
        "orphan_wait_s": 10.0,
        "suspect_wait_s": 0.2,
        # On a busy machine nobody is given up for being late.
        "worker_silence_s": 60.0,
        "store_timeout_ms": 60_000,
        "score_timeout_ms": 60_000,
        "foresee_timeout_ms": 60_000,
        **changes,
    }
    listen = (f"unix:{folder / 'f'}", *(("127.0.0.1:0",) if tls is not None else ()))
    rpc = RpcServerSettings(listen=listen, token_file=token_file, drain_timeout_s=5.0, **(tls or {}))
    return FrontdoorSettings(rpc, RpcChannelSettings(), **values)


@asynccontextmanager
async def running_suite(folder: Path, **changes: Any) -> AsyncIterator[FrontdoorSuite]:
    """Left as a killed process would leave it: without a drain."""
    settings = settings_of(folder, **changes)
    lay_tables(settings.ledger_url)
    journal = open_journal(settings.ledger_url)
    frontdoor = wire(settings, journal, await asyncio.wrap_future(journal.claim_epoch(settings.frontdoor_id)))
    await frontdoor.server.start()
    await frontdoor.warm()
    frontdoor.server.set_serving()
    try:
        async with open_channel(settings.rpc.listen[0], settings.channels) as channel:
            yield FrontdoorSuite(folder, frontdoor, ImageClient(channel), FrontdoorClient(channel))
    finally:
        frontdoor.stop_listening_to_clients()
        await frontdoor.server.stop()
        await frontdoor.close()
        journal.close()
