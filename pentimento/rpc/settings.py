"""Define the settings of a process's server and of its channels. Both are flattened into every service's settings."""

import os
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path

from pentimento.domain.errors import InvalidArgument
from pentimento.settings import setting
from pentimento.telemetry import LogFormat, LogLevel
from pentimento.telemetry.tracing import traces_are_sent

MEBIBYTE = 1 << 20
# The kernel's sun_path holds one more byte, its NUL.
SOCKET_PATH_BYTES = 107
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
WILDCARD_HOSTS = frozenset({"0.0.0.0", "[::]"})


class TraceDetail(Enum):
    """Name what traces record by choice only."""

    STEPS = "steps"
    PROMPTS = "prompts"


@dataclass(frozen=True)
class PemFiles:
    """Name the files of one side of a connection."""

    certificate: Path | None
    key: Path | None
    authorities: Path | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the given files."""
        return tuple(path for path in (self.certificate, self.key, self.authorities) if path is not None)


@dataclass(frozen=True)
class TlsSettings:
    """Configure TLS at host:port addresses by a directory with the layout of Kubernetes' TLS Secrets and cert-manager.

    tls.crt, tls.key            # serve TLS
    ca.crt                      # call servers by TLS, verified by these authorities
    tls.crt, tls.key, ca.crt    # both, and show tls.crt to servers that ask for it; `mutual_tls` also asks callers
    """

    tls_dir: Path | None = setting(
        None,
        help="directory for host:port addresses: tls.crt with tls.key to serve TLS, ca.crt to verify called servers",
        must_exist=True,
    )
    mutual_tls: bool = setting(False, help="callers must show a certificate that ca.crt of `tls_dir` has signed")

    def __post_init__(self) -> None:
        if self.tls_dir is None:
            if self.mutual_tls:
                raise ValueError("--mutual-tls needs --tls-dir with tls.crt, tls.key and ca.crt")
            return
        found = {"tls.crt": self.files.certificate, "tls.key": self.files.key, "ca.crt": self.files.authorities}
        missing = [name for name, file in found.items() if file is None]
        if len(missing) == len(found):
            raise ValueError(f"--tls-dir {self.tls_dir}: has neither tls.crt with tls.key nor ca.crt")
        if len({"tls.crt", "tls.key"} & set(missing)) == 1:
            raise ValueError(f"--tls-dir {self.tls_dir}: {missing[0]} is missing")
        if self.mutual_tls and missing:
            raise ValueError(f"--mutual-tls: {' and '.join(missing)} missing in --tls-dir {self.tls_dir}")

    @cached_property
    def files(self) -> PemFiles:
        """Return the files of the directory. They are searched for once: if one vanishes later, TLS must not end."""
        if self.tls_dir is None:
            return PemFiles(None, None, None)
        return PemFiles(*(_present(self.tls_dir / name) for name in ("tls.crt", "tls.key", "ca.crt")))

    @property
    def served(self) -> PemFiles:
        """Return the files of the listeners, with authorities if callers must show a certificate."""
        return self.files if self.mutual_tls else replace(self.files, authorities=None)


def _present(path: Path) -> Path | None:
    """Return the path of a file that can be read; None without one. Raises ValueError."""
    try:
        path.open("rb").close()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"--tls-dir {path}: cannot be read: {error.strerror}") from None
    return path


@dataclass(frozen=True)
class ServerBounds:
    """Bound what a server receives and how long its calls run."""

    # The contract may limit requests further.
    max_message_bytes: int = 32 * MEBIBYTE
    # Beyond, large ones wait or get RESOURCE_EXHAUSTED.
    max_receiving_bytes: int = 128 * MEBIBYTE
    # A request message also has 1 s per MiB.
    receive_timeout_s: float = 5.0
    # Per listening address; further ones are closed.
    max_connections: int = 1024
    # A call without a deadline gets this one.
    unary_deadline_s: float = 60.0


BOUNDS = ServerBounds()


@dataclass(frozen=True)
class RpcServerSettings:
    """Configure the calls to this process. Only its files' content can change without a restart."""

    listen: tuple[str, ...] = setting(
        ("127.0.0.1:0",), help="gRPC addresses: unix:/path or host:port; port 0: any free port"
    )
    instance_id: str = setting(
        "",
        help="name of this replica; {hostname} is replaced; empty: service name and 8 random digits",
    )
    token_file: Path | None = setting(
        None,
        help="TOML file of token digests, tenants and roles; empty: anyone may call everything",
        must_exist=True,
    )
    tls: TlsSettings = field(default_factory=TlsSettings)
    tls_callers_file: Path | None = setting(
        None,
        help="TOML file of names in certificates by service, which makes its calls only; needs `mutual_tls`",
        must_exist=True,
    )
    max_concurrent_calls: int = setting(
        4096,
        help="running calls and streams, at most half for one tenant; beyond: RESOURCE_EXHAUSTED",
        minimum=1,
    )
    tenant_calls_per_s: float = setting(
        200.0,
        help="new calls per second and tenant (with tokens); further ones wait",
        minimum=1,
    )
    drain_timeout_s: float = setting(30.0, help="time for running work after SIGTERM", minimum=0, maximum=3600)
    metrics_listen: str = setting("", help="host:port of /metrics; empty: none")
    log_format: LogFormat = setting(LogFormat.TEXT, help="log format on stderr")
    log_level: LogLevel = setting(LogLevel.INFO, help="lowest level logged")
    trace_details: tuple[TraceDetail, ...] = setting(
        (),
        help="steps: a span for each denoising step; prompts: OpenTelemetry's gen_ai attributes, the prompt included",
    )

    def __post_init__(self) -> None:
        if not self.listen:
            raise ValueError("--listen needs at least one address")
        for address in self.listen:
            check_address("--listen", address)
        if self.metrics_listen:
            check_http_address("--metrics-listen", self.metrics_listen)
        # Wrong variables of OpenTelemetry prevent the start as wrong settings do.
        traces_are_sent(os.environ)
        if self.tls.tls_dir is not None and self.tls.files.certificate is None:
            plain = [address for address in self.listen if not is_local(address)]
            if plain:
                raise ValueError(f"--tls-dir {self.tls.tls_dir}: tls.crt is missing, which --listen {plain[0]} needs")
        if self.tls_callers_file is not None and not self.tls.mutual_tls:
            raise ValueError("--tls-callers-file needs --mutual-tls: without it callers show no certificate")


@dataclass(frozen=True)
class RpcChannelSettings:
    """Configure the calls of this process to others."""

    service_token_file: Path | None = setting(
        None, help="file with the token for calls to other processes", must_exist=True
    )
    tls: TlsSettings = field(default_factory=TlsSettings)


def client_settings(tls_dir: str | Path | None = None) -> RpcChannelSettings:
    """Return the channel settings of a client library. InvalidArgument names a file that the directory lacks."""
    if tls_dir is None:
        return RpcChannelSettings()
    try:
        tls = TlsSettings(Path(tls_dir))
    except ValueError as error:
        raise InvalidArgument.of("tls_dir", str(error).removeprefix("--tls-dir ")) from None
    if tls.files.authorities is None:
        raise InvalidArgument.of("tls_dir", f"{tls_dir}: ca.crt is missing, which verifies the server")
    return RpcChannelSettings(tls=tls)


def room_for_streams(stream_count: int, message_bytes: int) -> ServerBounds:
    """Return bounds with room for `stream_count` streams, each receiving a message of `message_bytes`: if callers are
    not distinguished, streams may use three quarters of the room."""
    needed = (stream_count * 4 // 3 + 2) * message_bytes
    return ServerBounds(max_receiving_bytes=max(ServerBounds.max_receiving_bytes, needed))


def reachable_address(address: str, hostname: str) -> str:
    """Return the address at which other machines reach a process that listens on `address`: a wildcard becomes the
    host's name."""
    host, _, port = address.rpartition(":")
    return f"{hostname}:{port}" if host in WILDCARD_HOSTS else address


def is_unix(address: str) -> bool:
    return address.startswith("unix:")


def is_local(address: str) -> bool:
    """Return whether only processes of this machine can reach the address."""
    return is_unix(address) or address.rpartition(":")[0] in LOOPBACK_HOSTS


def check_address(flag: str, address: str) -> None:
    """Check that `address` is unix:/path or host:port. Raises ValueError."""
    if is_unix(address):
        path = address.removeprefix("unix:")
        if not path or len(path.encode()) > SOCKET_PATH_BYTES:
            limit = f"must have 1 to {SOCKET_PATH_BYTES} bytes"
            raise ValueError(f"{flag} {address}: the path {limit}, got {len(path.encode())}")
        return
    if not is_host_and_port(address):
        raise ValueError(f"{flag} must be unix:/path or host:port with a port of 0 to 65535, got {address!r}")


def check_http_address(flag: str, address: str) -> None:
    """Check that `address` is host:port. Raises ValueError."""
    if is_unix(address) or not is_host_and_port(address):
        raise ValueError(f"{flag} must be host:port with a port of 0 to 65535, got {address!r}")


def is_host_and_port(address: str) -> bool:
    """Return whether the host is a possible name or address, and the port is one."""
    host, _, port = address.rpartition(":")
    try:
        # As a resolver requires: two consecutive dots are no name.
        host.encode("idna")
    except UnicodeError:
        return False
    return bool(host) and port.isdecimal() and int(port) <= 65535
