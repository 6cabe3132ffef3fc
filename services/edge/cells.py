"""Call the frontdoor of a caller's tenant: its cell by rendezvous hashing, or the only one of a suite without cells."""

import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace

import grpc
import grpc.aio

from pentimento.clients.image import ImageClient
from pentimento.domain.errors import InvalidArgument, PentimentoError, Unauthenticated, Unavailable
from pentimento.domain.jobs import RequestPage, RequestQuery
from pentimento.domain.reasons import Reason
from pentimento.policies.cells import CellMap
from services.edge.caller_channels import MAX_CALLERS, CallerChannels

FIND_TIMEOUT_S = 5.0
# The reason of a call that reached no process.
NOT_REACHED = grpc.StatusCode.UNAVAILABLE.name
# Between the name of a cell and its own token of a page.
PAGE_MARK = "/"


class Frontdoors:
    """Open channels to frontdoors with callers' tokens. `channels`: by cell; a suite without cells has one, named
    ""."""

    def __init__(self, cells: CellMap, channels: Mapping[str, CallerChannels]) -> None:
        self._cells = cells
        self._channels = channels
        # Tenants by token: only a frontdoor knows them.
        self._tenants: OrderedDict[str | None, str] = OrderedDict()

    @property
    def cells(self) -> Mapping[str, CallerChannels]:
        return self._channels

    @asynccontextmanager
    async def channel(self, token: str | None) -> AsyncIterator[grpc.aio.Channel]:
        """Yield a channel to the caller's cell for one call. Raises as `CallerChannels.channel`, and Unavailable
        CELL_UNAVAILABLE while the cell is down: calls of other tenants do not notice."""
        async with self._at(self._cells.home(await self._tenant(token)), token) as channel:
            yield channel

    @asynccontextmanager
    async def images(self, token: str | None) -> AsyncIterator[ImageClient]:
        """Yield a client for one call, which continues at the cell that a frontdoor leads to. Raises as `channel`."""

        def open_cell(error: PentimentoError) -> AbstractAsyncContextManager[grpc.aio.Channel]:
            # An address that a frontdoor names is not called: only the operator's own.
            name = error.metadata.get("cell", "")
            if name not in self._channels:
                raise error
            return self._at(name, token)

        async with self.channel(token) as channel:
            yield ImageClient(channel, open_cell)

    async def page(self, token: str | None, query: RequestQuery, timeout_s: float) -> RequestPage:
        """Return a page of the tenant's requests: those of its cell, newest first, then those of former cells. Raises
        InvalidArgument for the token of a page of another cell."""
        tenant = await self._tenant(token)
        names = (self._cells.home(tenant), *self._cells.formers(tenant))
        first, page_token = names[0], query.page_token
        if names[0] and page_token:
            first, _, page_token = page_token.partition(PAGE_MARK)
            if first not in names:
                raise InvalidArgument.of("page_token", "must be one that the previous page named")
        left = names[names.index(first) :]
        for name, following in zip(left, (*left[1:], ""), strict=True):
            async with self._at(name, token) as channel:
                page = await ImageClient(channel).list_requests(replace(query, page_token=page_token), timeout_s)
            page_token = page.next_page_token
            if page.next_page_token and name:
                page = replace(page, next_page_token=f"{name}{PAGE_MARK}{page.next_page_token}")
            elif following:
                page = replace(page, next_page_token=f"{following}{PAGE_MARK}")
            if page.requests or not following:
                break
        return page

    async def close(self) -> None:
        for channels in self._channels.values():
            await channels.close()

    async def _tenant(self, token: str | None) -> str:
        """Return the caller's tenant; "" without cells."""
        if "" in self._channels:
            return ""
        if token not in self._tenants:
            self._tenants[token] = await self._find_tenant(token)
            while len(self._tenants) > MAX_CALLERS:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(token)
        return self._tenants[token]

    async def _find_tenant(self, token: str | None) -> str:
        """Ask any frontdoor that answers; callers begin with different ones."""
        names = sorted(self._channels)
        first = zlib.crc32((token or "").encode()) % len(names)
        *others, last = [*names[first:], *names[:first]]
        for name in others:
            with suppress(Unavailable):
                return await self._tenant_by(name, token)
        return await self._tenant_by(last, token)

    async def _tenant_by(self, name: str, token: str | None) -> str:
        async with self._channels[name].channel(token) as channel:
            return (await ImageClient(channel).find_cell(FIND_TIMEOUT_S)).tenant

    @asynccontextmanager
    async def _at(self, name: str, token: str | None) -> AsyncIterator[grpc.aio.Channel]:
        """Yield a channel to a cell. Forget the tenant of a token that is no longer accepted, and name a cell that is
        down."""
        try:
            async with self._channels[name].channel(token) as channel:
                yield channel
        except Unauthenticated:
            self._tenants.pop(token, None)
            raise
        except Unavailable as error:
            if not name or error.reason != NOT_REACHED:
                raise
            message = f"the cell {name} does not answer"
            raise Unavailable(
                Reason.CELL_UNAVAILABLE, message, retry_after_ms=error.retry_after_ms, metadata={"cell": name}
            ) from error
