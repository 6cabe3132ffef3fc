"""Check the names in a caller's certificate against the calls that its service makes.

    [names]                          # a file of `tls_callers_file`
    edge = ["spiffe://cluster.local/ns/images/sa/pentimento-edge", "pentimento-edge.images.svc"]
    unet-worker = ["*.pentimento-unet-worker-heavy.images.svc"]
    administrator = ["spiffe://cluster.local/ns/images/sa/operator"]

A name belongs to a service, and a service makes the calls of `allowed_calls.ALLOWED_CALLS`; `client` and
`administrator` those of their roles. A certificate may make the calls of every service with one of its names.

A name is a DNS name or a URI, and matches names of the same kind. `*` as the first label of a DNS name is any one label
(RFC 6125, section 6.4.3, as OpenSSL matches without partial wildcards): `*.workers.ns.svc` is `worker-0.workers.ns.svc`
and not `a.b.workers.ns.svc`. URIs match exactly; their scheme and host without regard to case (SPIFFE-ID, section 2).
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import Counter

from pentimento.domain.errors import PermissionDenied
from pentimento.rpc.access import CALLERS
from pentimento.rpc.watched_file import KeptReading, text_of
from pentimento.settings import SettingsError

REJECTED = Counter(
    "pentimento_rpc_rejected_callers_total",
    "Calls rejected since no name in the caller's certificate may make them; the audit log has each.",
)
MAX_NAME_LENGTH = 253
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DNS = re.compile(rf"{_LABEL}(\.{_LABEL})*")
# A wildcard over a whole top-level domain is none for OpenSSL, too.
_WILDCARD = re.compile(rf"\*(\.{_LABEL}){{2,}}")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s?#*@:]+(/[^/\s?#*]+)+")
# Remembered certificates: those of a fleet.
KEPT_COUNT = 1024


@dataclass(frozen=True)
class CertificateNames:
    """Hold the subject alternative names of a certificate."""

    dns: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join((*self.uris, *self.dns)) or "a certificate without DNS names and URIs"


NO_NAMES = CertificateNames()


def names_of_call(auth_context: Mapping[str, Iterable[bytes]]) -> CertificateNames:
    """Return the names in the certificate of a call's peer, as gRPC gives them."""

    def named(key: str) -> tuple[str, ...]:
        return tuple(value.decode("ascii", "replace") for value in auth_context.get(key, ()))

    return CertificateNames(named("peer_dns"), named("peer_uri"))


def names_of_certificate(certificate: Mapping[str, Any] | None) -> CertificateNames:
    """Return the names in a verified certificate, as `ssl.SSLObject.getpeercert` gives it; none without one."""
    names = (certificate or {}).get("subjectAltName", ())
    return CertificateNames(
        tuple(value for kind, value in names if kind == "DNS"), tuple(value for kind, value in names if kind == "URI")
    )


class CallerRules:
    """Decide which calls the names of a certificate may make. The file is read again when it changes, looked at once a
    second at most; a malformed one changes nothing and is logged. SettingsError if it is malformed at first. One event
    loop."""

    def __init__(self, path: Path) -> None:
        self._reading = KeptReading((path,), lambda: read_rules(path), "rules of callers not reloaded")

    def check(self, path: str, callers: frozenset[str], names: CertificateNames) -> None:
        """Raise PermissionDenied, which names the method and the names, and count it, unless one of the `callers` of
        "/package.Service/Method" has one of the names."""
        if callers.isdisjoint(self._reading.current().services(names)):
            REJECTED.inc()
            message = f"{path} is not for {names}"
            raise PermissionDenied("CALLER_NOT_ALLOWED", message, metadata={"method": path, "names": str(names)})


CallerCheck = Callable[[Any, str, frozenset[str] | None], None]


def any_names(context: Any, path: str, callers: frozenset[str] | None) -> None:
    """Allow every call."""


def caller_check(file: Path | None, names_of_relayed: Callable[[str], CertificateNames | None]) -> CallerCheck:
    """Return the check of a server's calls: of gRPC's context, "/package.Service/Method", and its callers (None: any).
    `names_of_relayed`: the names of a relayed peer, None for others. Unix sockets are protected by their mode: their
    callers show no certificate. SettingsError for a malformed file."""
    if file is None:
        return any_names
    rules = CallerRules(file)

    def check(context: Any, path: str, callers: frozenset[str] | None) -> None:
        peer: str = context.peer()
        names = names_of_relayed(peer)
        if callers is None or (names is None and peer.startswith("unix")):
            return
        rules.check(path, callers, names_of_call(context.auth_context()) if names is None else names)

    return check


class NamedServices:
    """Hold the names of one file."""

    def __init__(self, names: Mapping[str, tuple[str, ...]]) -> None:
        """Take the names by service."""
        self._services: defaultdict[str, set[str]] = defaultdict(set)
        for service, own in names.items():
            for name in own:
                self._services[name].add(service)
        self._known: dict[CertificateNames, frozenset[str]] = {}

    def services(self, names: CertificateNames) -> frozenset[str]:
        """Return the services that have one of a certificate's names."""
        found = self._known.get(names)
        if found is None:
            found = frozenset().union(*(self._services.get(form, ()) for form in _forms(names)))
            if len(self._known) >= KEPT_COUNT:
                self._known.clear()
            self._known[names] = found
        return found


def _forms(names: CertificateNames) -> Iterator[str]:
    """Yield the forms of each name of a certificate that a file may have: unchanged, or with a wildcard."""
    for name in names.dns:
        if _DNS.fullmatch(name) or _WILDCARD.fullmatch(name):
            plain = name.lower()
            yield plain
            yield f"*.{plain.partition('.')[2]}"
    for name in names.uris:
        if _URI.fullmatch(name):
            yield _plain_uri(name)


def _plain_uri(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}://{host.lower()}{slash}{path}"


def read_rules(path: Path) -> NamedServices:
    """Return the names of a file. SettingsError names the file, the service and the name."""
    try:
        document = tomllib.loads(text_of(path))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error
    named = document.get("names")
    if set(document) != {"names"} or not isinstance(named, dict) or not named:
        raise SettingsError(f"{path}: must hold the table [names], of lists of names by service, and nothing else")
    return NamedServices({service: _checked(path, service, names) for service, names in named.items()})


def _checked(path: Path, service: str, names: object) -> tuple[str, ...]:
    where = f"{path}: names.{service}"
    if service not in CALLERS:
        raise SettingsError(f"{where}: must be one of {', '.join(sorted(CALLERS))}")
    if not isinstance(names, list):
        raise SettingsError(f"{where}: must be a list of names")
    return tuple(_checked_name(f"{where}[{index}]", name) for index, name in enumerate(names))


def _checked_name(where: str, name: object) -> str:
    """Return a name in its plain form."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_LENGTH:
        raise SettingsError(f"{where}: must be a text of 1 to {MAX_NAME_LENGTH} characters")
    if _URI.fullmatch(name):
        return _plain_uri(name)
    if _DNS.fullmatch(name) or _WILDCARD.fullmatch(name):
        return name.lower()
    limit = "must be a DNS name, with * as its whole first label before two others at least, or a URI such as"
    raise SettingsError(f"{where}: {limit} spiffe://cluster.local/ns/images/sa/pentimento-edge, got {name[:80]!r}")
