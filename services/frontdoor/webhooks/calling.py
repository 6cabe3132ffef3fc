"""Call a webhook once: POST over a new connection to a validated address. Redirects are not followed, proxies are not
used, and only the status of the answer is read."""

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from pentimento.domain.errors import PentimentoError
from services.frontdoor.webhooks.rules import WebhookRules, WebhookTarget

# Concurrent lookups of hosts: one for each concurrent call, as each may need one.
_LOOKUP_THREADS = 64
# Limits of a status line, and of the head of an interim answer (1xx) before it.
_MAX_LINE_BYTES = 8192
_MAX_INTERIM_LINES = 100
_STATUS = re.compile(rb"HTTP/1\.[01] (?P<status>[1-9][0-9]{2})(?: [^\r\n]*)?\r?\n")


class WebhookFailed(Exception):
    """Report a failed call; the message gives a short reason, without addresses."""


class WebhookCaller:
    """Call webhooks. `tls`: the trusted authorities; `timeout_s` covers a whole call."""

    def __init__(self, rules: WebhookRules, tls: ssl.SSLContext, timeout_s: float) -> None:
        self._rules = rules
        self._tls = tls
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_LOOKUP_THREADS, "webhook-names")
        self._lookups: dict[tuple[str, int], asyncio.Future[list[Any]]] = {}

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        """Return the status of the answer. Raises WebhookFailed if there is none, and as `WebhookRules.target`."""
        target = self._rules.target(url)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(target, await self._address(target), _request(target, headers, body))
        except TimeoutError:
            raise WebhookFailed("no answer in time") from None
        except ssl.SSLError:
            raise WebhookFailed("TLS failed") from None
        except (OSError, EOFError, ValueError):
            raise WebhookFailed("no connection, or no answer over it") from None

    async def looked_up(self, url: str) -> None:
        """Return once no lookup of the address's host runs, even if it failed."""
        with suppress(PentimentoError):
            target = self._rules.target(url)
            if (lookup := self._lookups.get((target.host, target.port))) is not None:
                await asyncio.wait([lookup])

    async def _address(self, target: WebhookTarget) -> str:
        """Return an address of the host, looked up once. One address that may not be called rejects them all."""
        found = await self._looked_up(target.host, target.port)
        addresses = [str(entry[4][0]) for entry in found]
        if not addresses or not all(map(self._rules.may_connect, addresses)):
            raise WebhookFailed("its host resolves to an address that may not be called")
        return addresses[0]

    async def _looked_up(self, host: str, port: int) -> list[Any]:
        """Look a host up on separate threads, where a resolver that does not answer blocks no other work. Later calls
        for the same host wait for the running lookup: an abandoned one ends when the resolver does."""
        lookup = self._lookups.get((host, port))
        if lookup is None:
            find = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            lookup = asyncio.get_running_loop().run_in_executor(self._threads, find)
            self._lookups[host, port] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop((host, port)))
        return await asyncio.shield(lookup)

    async def _post(self, target: WebhookTarget, address: str, request: bytes) -> int:
        secured: dict[str, Any] = {"ssl": self._tls, "server_hostname": target.host} if target.scheme == "https" else {}
        reader, writer = await asyncio.open_connection(address, target.port, limit=_MAX_LINE_BYTES, **secured)
        try:
            writer.write(request)
            await writer.drain()
            return await _status_of(reader)
        finally:
            # The rest of the answer is not read: the connection ends here.
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


def _request(target: WebhookTarget, headers: Mapping[str, str], body: bytes) -> bytes:
    fields = {
        "Host": target.authority,
        "User-Agent": "pentimento-webhooks",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {target.target} HTTP/1.1\r\n{head}\r\n".encode("ascii") + body


async def _status_of(reader: asyncio.StreamReader) -> int:
    """Return the final status; skip interim answers (1xx) with their heads."""
    for _ in range(_MAX_INTERIM_LINES):
        line = await reader.readline()
        found = _STATUS.fullmatch(line)
        if found is None:
            raise EOFError
        status = int(found["status"])
        if status >= 200:
            return status
        await _skip_head(reader)
    raise EOFError


async def _skip_head(reader: asyncio.StreamReader) -> None:
    for _ in range(_MAX_INTERIM_LINES):
        line = await reader.readline()
        if not line:
            raise EOFError
        if line in (b"\r\n", b"\n"):
            return
    raise EOFError
