"""Frontdoors as cells over one worker, and an edge before them, with real sockets, journals and object stores."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from lab.fixtures.edge_suite import running_edge
from lab.fixtures.frontdoor_suite import LIMITS, settings_of
from pentimento.domain.image_request import ImageRequest
from pentimento.domain.tenants import Role
from pentimento.rpc import RpcChannelSettings
from pentimento.rpc.tokens import token_entry
from pentimento.sdk import AsyncClient
from pentimento.stores.ledger import open_journal
from services.frontdoor.process import Frontdoor
from services.frontdoor.settings import FrontdoorSettings
from services.frontdoor.wiring import wire

# The cell of each tenant by the lists a+b and a+b+c.
TENANTS = {"acme": "aa", "hooli": "aa", "globex": "bb", "tyrell": "ac", "umbrella": "bb"}
REQUEST = ImageRequest(prompt="a red circle", num_inference_steps=3, seed=1)


def write_tokens(folder: Path) -> Path:
    """Write a token of each tenant, named after it, and the services' own."""
    entries = [token_entry(tenant, tenant, frozenset({Role.USER, Role.ADMIN})) for tenant in TENANTS]
    file = folder / "tokens.toml"
    file.write_text("".join([*entries, token_entry("service", "suite", frozenset({Role.SERVICE}))]))
    (folder / "service-token").write_text("service\n")
    return file


@dataclass
class RunningCells:
    """Start, kill and restart cells with other lists."""

    folder: Path
    names: Sequence[str]
    # The cell with the tenants' journal, as in `pentimento up`, compose and the chart; "": none.
    tenants_of: str = ""

    def __post_init__(self) -> None:
        self._running: dict[str, tuple[Frontdoor, Any]] = {}
        self.token_file = write_tokens(self.folder)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"{name}=unix:{self.folder / name}" for name in self.names)

    def settings(self, name: str, lists: Sequence[str], **changes: Any) -> FrontdoorSettings:
        own = self.folder / f"cell-{name}"
        own.mkdir(exist_ok=True)
        of_cell = self.folder / f"cell-{self.tenants_of}" / "journal.sqlite"
        tenants = of_cell if self.tenants_of else self.folder / "tenants.sqlite"
        settings = settings_of(
            own,
            self.token_file,
            worker_addresses=(f"unix:{self.folder / 'w1'}",),
            tenants_url=f"sqlite:///{tenants}",
            frontdoor_id=name,
            cells=self.addresses,
            cell_lists=tuple(lists),
            **changes,
        )
        rpc = replace(settings.rpc, listen=(f"unix:{self.folder / name}",))
        channels = RpcChannelSettings(service_token_file=self.folder / "service-token")
        return replace(settings, rpc=rpc, channels=channels)

    async def start(self, name: str, *lists: str, **changes: Any) -> Frontdoor:
        settings = self.settings(name, lists, **changes)
        journal = open_journal(settings.ledger_url, None, settings.tenants_url)
        frontdoor = wire(settings, journal, await asyncio.wrap_future(journal.claim_epoch(name)), LIMITS)
        await frontdoor.server.start()
        await frontdoor.warm()
        frontdoor.server.set_serving()
        self._running[name] = frontdoor, journal
        return frontdoor

    async def kill(self, name: str) -> None:
        """Stop a cell as a killed process would."""
        frontdoor, journal = self._running.pop(name)
        frontdoor.stop_listening_to_clients()
        await frontdoor.server.stop()
        await frontdoor.close()
        journal.close()

    async def restart(self, name: str, *lists: str) -> Frontdoor:
        await self.kill(name)
        return await self.start(name, *lists)

    async def stop(self) -> None:
        for name in tuple(self._running):
            await self.kill(name)

    def client(self, name: str, tenant: str) -> AsyncClient:
        """Return a client over gRPC that calls that cell first."""
        return AsyncClient(f"unix:{self.folder / name}", token=tenant)

    @asynccontextmanager
    async def edge(self, *lists: str) -> AsyncIterator[httpx.AsyncClient]:
        own = self.folder / f"edge-{len(lists)}"
        own.mkdir(exist_ok=True)
        async with AsyncExitStack() as stack:
            opened = running_edge(own, "", cells=self.addresses, cell_lists=lists)
            running = await stack.enter_async_context(opened)
            url = f"http://{running.listener.address}"
            yield await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))


def key_of(tenant: str, key: str = "") -> dict[str, str]:
    """Return the headers of a caller."""
    return {"Authorization": f"Bearer {tenant}"} | ({"Idempotency-Key": key} if key else {})


async def generate(http: httpx.AsyncClient, tenant: str, key: str = "") -> httpx.Response:
    body = {"prompt": "a red circle", "num_inference_steps": 3, "seed": 1}
    return await http.post("/v1/images/generations", json=body, headers=key_of(tenant, key))


async def request_ids(http: httpx.AsyncClient, tenant: str) -> list[str]:
    """Return the ids of a tenant's requests, from all pages of one request each."""
    found: list[str] = []
    after = ""
    while True:
        query = {"jobs_only": "false", "limit": "1", **({"after": after} if after else {})}
        page = (await http.get("/v1/jobs", params=query, headers=key_of(tenant))).raise_for_status().json()
        found += [one["id"] for one in page["data"]]
        if not (after := page.get("next") or ""):
            return found


def accepted_requests(folder: Path, name: str) -> Counter[tuple[str, str]]:
    """Return the requests in the journal of a cell by tenant and idempotency key."""
    with closing(sqlite3.connect(folder / f"cell-{name}" / "journal.sqlite")) as journal:
        return Counter(journal.execute("select tenant, idempotency_key from journal_requests"))
