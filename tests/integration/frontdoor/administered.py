"""Run a frontdoor with tenant administration, over real sockets and a real ledger."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite
from pentimento.clients.frontdoor import TenantsClient
from pentimento.clients.image import ImageClient
from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import Completed, ImageRequest
from pentimento.domain.tenants import Role, TenantQuota
from pentimento.rpc import RpcChannelSettings, open_channel, token_entry
from tests.support.calls import last_completed

ROLES = {"user": Role.USER, "service": Role.SERVICE, "admin": Role.ADMIN, "tenant-admin": Role.TENANT_ADMIN}


class Administered:
    """Hold a running frontdoor with tenant administration, and a token of each role."""

    def __init__(self, suite: FrontdoorSuite, stack: AsyncExitStack, admin: TenantsClient) -> None:
        self.suite = suite
        self.admin = admin
        self._stack = stack

    async def client(self, token: str) -> ImageClient:
        return ImageClient(await self.channel("f", token))

    async def channel(self, socket: str, token: str | None) -> grpc.aio.Channel:
        address = f"unix:{self.suite.folder / socket}"
        return await self._stack.enter_async_context(open_channel(address, RpcChannelSettings(), token))

    async def tenant(self, name: str, **quota: Any) -> ImageClient:
        """Create a tenant with a key, and return its client."""
        await self.admin.create(name, TenantQuota(**quota))
        return await self.client((await self.admin.create_key(name))[1])


@asynccontextmanager
async def administered(folder: Path, **changes: Any) -> AsyncIterator[Administered]:
    table = folder / "tokens.toml"
    table.write_text("".join(token_entry(f"token-{name}", "static", frozenset({role})) for name, role in ROLES.items()))
    async with (
        running_suite(folder, token_file=table, admin_listen=(f"unix:{folder / 'a'}",), **changes) as suite,
        AsyncExitStack() as stack,
    ):
        channel = await stack.enter_async_context(
            open_channel(f"unix:{folder / 'a'}", RpcChannelSettings(), "token-tenant-admin")
        )
        yield Administered(suite, stack, TenantsClient(channel, 60.0))


async def generate(client: ImageClient, request: ImageRequest = REQUEST, key: str = "") -> Completed:
    return await last_completed(client.generate(request, key))


async def refusal(client: ImageClient, request: ImageRequest = REQUEST) -> PentimentoError:
    with pytest.raises(PentimentoError) as caught:
        await generate(client, request)
    return caught.value
