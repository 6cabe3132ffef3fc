"""Decide which addresses a webhook may have, and call one once: POST over a new connection to a validated address.

An address is validated twice: as text when a job names it, and by IP address at the call, which connects to exactly
that IP address: a name cannot change to another host in between (DNS rebinding). Redirects are not followed, proxies
are not used, and only the status of the answer is read.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from pentimento.domain.errors import FailedPrecondition, InvalidArgument, PentimentoError

MAX_URL_CHARS = 2048
_HTTPS_PORT, _HTTP_PORT = 443, 80
# Only lower-case names and IPv4 addresses, then printable ASCII. No parser reads "@", "\" or "#" differently.
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_URL = re.compile(
    rf"(?P<scheme>https?)://(?P<host>{_LABEL}(?:\.{_LABEL})*)(?::(?P<port>[1-9][0-9]{{0,4}}))?"
    r"(?P<target>/[!$-;=?-\[\]_a-z~]*)?",
    re.ASCII,
)
_HOST_RULE = re.compile(
    rf"(?:(?P<scheme>http)://)?(?P<any>\*\.)?(?P<host>{_LABEL}(?:\.{_LABEL})*)(?::(?P<port>[1-9][0-9]{{0,4}}))?",
    re.ASCII,
)
# All that IPv6 gives to hosts (RFC 4291); neither site-local addresses (fec0::/10) nor reserved ones are in it.
_PUBLIC_IPV6 = IPv6Network("2000::/3")
# Addresses that encode another address (RFC 3056, 4380, 7526), those of protocols (RFC 6890), documentation (RFC 9637)
# and the former 6bone (RFC 3701).
_NO_HOSTS = tuple(
    map(ip_network, ("2002::/16", "2001::/23", "3fff::/20", "3ffe::/16", "192.88.99.0/24", "192.0.0.0/24"))
)

Address = IPv4Address | IPv6Address


@dataclass(frozen=True)
class WebhookTarget:
    """Hold the parts of a webhook's address: `target` is path and query, `authority` the value of the header Host."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        usual = _HTTPS_PORT if self.scheme == "https" else _HTTP_PORT
        return self.host if self.port == usual else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class HostRule:
    """Allow a host, or with `below` any name below it instead. `port` None: the scheme's own."""

    host: str
    below: bool = False
    port: int | None = None
    scheme: str = "https"

    @classmethod
    def of_text(cls, text: str) -> "HostRule":
        """Read `hooks.example.com`, `*.example.com` or `hooks.example.com:8443`; `http://` before it: without TLS.
        Raises InvalidArgument."""
        found = _HOST_RULE.fullmatch(text.lower())
        if found is None or len(text) > MAX_URL_CHARS:
            forms = "NAME, *.NAME, NAME:PORT, http://NAME or a network such as 10.0.0.0/8"
            raise InvalidArgument.of("webhook_hosts", f"must be {forms}, got {text[:80]!r}")
        port = int(found["port"]) if found["port"] else None
        return cls(found["host"], bool(found["any"]), port, found["scheme"] or "https")

    def allows(self, target: WebhookTarget) -> bool:
        usual = _HTTPS_PORT if target.scheme == "https" else _HTTP_PORT
        named = target.host.endswith(f".{self.host}") if self.below else target.host == self.host
        return named and target.port == (self.port or usual) and target.scheme == self.scheme


@dataclass(frozen=True)
class WebhookRules:
    """Decide which addresses may be called. `hosts` empty: none. `networks`: addresses that are not public but
    allowed."""

    hosts: tuple[HostRule, ...] = ()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def target(self, url: str) -> WebhookTarget:
        """Return the parts of the address. Raises FailedPrecondition WEBHOOKS_OFF, WEBHOOK_REFUSED for a host that is
        not allowed, InvalidArgument for text that is not an address."""
        if not self.hosts:
            raise FailedPrecondition("WEBHOOKS_OFF", "webhook: this deployment calls none")
        found = _URL.fullmatch(url) if len(url) <= MAX_URL_CHARS else None
        port = int(found["port"] or 0) if found else 0
        if found is None or port > 65_535:
            limit = f"must be https://NAME[:PORT][/PATH] of at most {MAX_URL_CHARS} plain characters, the name in lower"
            raise InvalidArgument.of("webhook.url", f"{limit} case, without user and fragment")
        if all(rule.scheme == "https" for rule in self.hosts) and found["scheme"] == "http":
            raise InvalidArgument.of("webhook.url", "must begin with https://")
        usual = _HTTPS_PORT if found["scheme"] == "https" else _HTTP_PORT
        target = WebhookTarget(found["scheme"], found["host"], port or usual, found["target"] or "/")
        if not any(rule.allows(target) for rule in self.hosts):
            raise FailedPrecondition("WEBHOOK_REFUSED", "webhook.url: its host is not one that this deployment calls")
        return target

    def may_connect(self, address: str) -> bool:
        """Return whether an IP address of a host may be connected to: public, or in `networks`."""
        found = _unwrapped(address)
        if any(found in network for network in self.networks if network.version == found.version):
            return True
        no_host = any(found in network for network in _NO_HOSTS if network.version == found.version)
        if isinstance(found, IPv6Address) and found not in _PUBLIC_IPV6:
            return False
        return found.is_global and not found.is_multicast and not found.is_reserved and not no_host


def webhook_rules(entries: tuple[str, ...]) -> WebhookRules:
    """Read hosts, and networks such as `10.0.0.0/8`. Raises InvalidArgument."""
    networks = [text for text in entries if "/" in text.removeprefix("http://")]
    hosts = tuple(HostRule.of_text(text) for text in entries if text not in networks)
    try:
        return WebhookRules(hosts, tuple(map(ip_network, networks)))
    except ValueError as error:
        raise InvalidArgument.of("webhook_hosts", f"must have networks such as 10.0.0.0/8: {error!s:.120}") from None


def _unwrapped(address: str) -> Address:
    """Return the address; for an IPv4 address written as IPv6 (::ffff:10.0.0.1) the IPv4 one."""
    found = ip_address(address.partition("%")[0])
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


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
