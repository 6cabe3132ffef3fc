"""Callers: their token and key, about which the frontdoor decides, and the host names and pages that may call.

Any page can send requests from a user's browser and network."""

from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from pentimento.domain.errors import InvalidArgument, PermissionDenied, Unauthenticated
from pentimento.rpc.settings import LOOPBACK_HOSTS, is_local
from services.edge.http.bodies import shown

SCHEME = "bearer"
MAX_TOKEN_CHARS = 1024
KEY_HEADER = "Idempotency-Key"
MAX_KEY_CHARS = 128


def token_of(request: HTTPConnection) -> str | None:
    """Return the caller's bearer token; None for a missing or empty one and for other schemes, since a suite without
    tokens accepts those callers. Unauthenticated MALFORMED_TOKEN for an invalid one."""
    given = request.headers.getlist("authorization")
    if len(given) > 1:
        raise malformed_token()
    scheme, _, token = given[0].strip().partition(" ") if given else ("", "", "")
    token = token.strip()
    if scheme.lower() != SCHEME or not token:
        return None
    if not (token.isascii() and token.isprintable()) or len(token) > MAX_TOKEN_CHARS:
        raise malformed_token()
    return token


def malformed_token() -> Unauthenticated:
    return Unauthenticated("MALFORMED_TOKEN", "the header Authorization must be `Bearer <token>`, once")


def idempotency_key_of(request: HTTPConnection) -> str:
    """Return the idempotency key of a call, "" without one. InvalidArgument for an invalid one."""
    given = request.headers.getlist(KEY_HEADER)
    if not given:
        return ""
    key = given[0]
    if len(given) > 1 or not 1 <= len(key) <= MAX_KEY_CHARS or not (key.isascii() and key.isprintable()):
        raise InvalidArgument.of(KEY_HEADER, f"must occur once, with 1 to {MAX_KEY_CHARS} printable ASCII characters")
    return key


def caller_of(request: HTTPConnection) -> str:
    """Return the caller's identity before the frontdoor knows it: the token, else the IP address. Unauthenticated like
    `token_of`."""
    return token_of(request) or (request.client.host if request.client is not None else "")


@dataclass(frozen=True)
class OriginRule:
    """Hold the allowed host names and origins.

    Empty `hosts` allow any name; IP addresses are always allowed. Pages may call their own origin; others must be in
    `origins`."""

    hosts: frozenset[str]
    origins: frozenset[str]

    def check(self, request: HTTPConnection) -> None:
        """Raise PermissionDenied WRONG_HOST for an unknown host name (DNS rebinding: a page may point its name here),
        WRONG_ORIGIN for a page of another origin, InvalidArgument for two Host headers."""
        headers = request.headers
        if len(headers.getlist("host")) > 1:
            raise InvalidArgument.of("Host", "must occur once")
        host = headers.get("host", "")
        if self.hosts and host_name(host) not in self.hosts and not is_ip_address(host_name(host)):
            message = (
                f"the header Host names {shown(host_name(host))!r}, which is not served here: an operator adds it to"
                " the edge's setting allowed-hosts (PENTIMENTO_EDGE_ALLOWED_HOSTS, in compose PENTIMENTO_HTTP_HOSTS)"
            )
            raise PermissionDenied("WRONG_HOST", message)
        origin = headers.get("origin")
        if origin is None:
            # Browsers send no Origin in navigation and GET; Sec-Fetch-Site tells whether another site's page called.
            if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
                raise wrong_origin()
        elif origin not in self.origins and host_of_origin(origin) != host:
            raise wrong_origin()

    def allows(self, origin: str | None) -> bool:
        """Return whether pages of another origin may read answers."""
        return origin in self.origins


def is_ip_address(name: str) -> bool:
    """Return whether a host is an IP address, which no page can redirect, in contrast to a name."""
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def wrong_origin() -> PermissionDenied:
    return PermissionDenied("WRONG_ORIGIN", "pages of other origins may not call this API")


def host_of_origin(origin: str) -> str | None:
    """Return host:port of an origin, "" without a host; None for an invalid origin."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def host_name(host: str) -> str:
    """Return the name of host:port."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host).lower()


def origin_rule(listen: str, hosts: tuple[str, ...], origins: tuple[str, ...]) -> OriginRule:
    """Return the rule for a listener; one on the loopback interface allows only names of this machine."""
    if not hosts and is_local(listen):
        hosts = tuple(LOOPBACK_HOSTS)
    return OriginRule(frozenset(host.lower() for host in hosts), frozenset(origins))
