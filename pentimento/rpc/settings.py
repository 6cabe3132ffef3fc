"""How a process is called, and how it calls others. Both are flattened into every service's settings."""

from dataclasses import dataclass, replace
from pathlib import Path

from pentimento.domain.errors import InvalidArgument
from pentimento.settings import setting
from pentimento.telemetry import LogFormat, LogLevel

MEBIBYTE = 1 << 20
# The kernel's sun_path holds one more, its NUL.
SOCKET_PATH_BYTES = 107
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
WILDCARD_HOSTS = frozenset({"0.0.0.0", "[::]"})


@dataclass(frozen=True)
class RpcServerSettings:
    """How this process is called. What can be changed without a restart: the content of its files."""

    listen: tuple[str, ...] = setting(
        ("127.0.0.1:0",), help="addresses to serve gRPC on: unix:/path or host:port; port 0 takes a free one"
    )
    instance_id: str = setting(
        "",
        help="name of this replica; {hostname} in it stands for the machine's, in a container the container's; empty"
        " makes one of the service's name and 8 random digits",
    )
    token_file: Path | None = setting(
        None,
        help="TOML file of token digests, tenants and roles; without it everybody may call everything",
        must_exist=True,
    )
    tls_cert_file: Path | None = setting(
        None, help="PEM certificate chain served on host:port addresses", must_exist=True
    )
    tls_key_file: Path | None = setting(None, help="PEM private key of tls_cert_file", must_exist=True)
    tls_client_ca_file: Path | None = setting(
        None, help="PEM authorities; given, clients must show a certificate of theirs (mTLS)", must_exist=True
    )
    max_message_bytes: int = setting(
        32 * MEBIBYTE,
        help="largest message sent or received; requests are besides bounded by what their contract says",
        minimum=1024,
        maximum=1024 * MEBIBYTE,
    )
    max_receiving_bytes: int = setting(
        128 * MEBIBYTE,
        help="bytes of request messages received at once; large ones beyond wait for their turn, or are answered"
        " RESOURCE_EXHAUSTED",
        minimum=MEBIBYTE,
    )
    receive_timeout_ms: int = setting(
        5000,
        help="within which a request message must arrive, and a second more for each MiB its method allows",
        minimum=100,
        maximum=600_000,
    )
    max_connections: int = setting(
        1024, help="connections at once, for each listening address; more are closed", minimum=1
    )
    max_concurrent_calls: int = setting(
        4096,
        help="calls served at once, streams included, half of them at most for one tenant; more are answered"
        " RESOURCE_EXHAUSTED",
        minimum=1,
    )
    tenant_calls_per_s: float = setting(
        200.0,
        help="calls that begin each second for one tenant, where tokens tell tenants apart; further ones wait, so that"
        " a storm of calls does not hold up those of others",
        minimum=1,
    )
    unary_deadline_ms: int = setting(
        60_000, help="deadline of unary calls whose caller set none", minimum=1, maximum=3_600_000
    )
    drain_timeout_s: float = setting(30.0, help="seconds for running work after SIGTERM", minimum=0, maximum=3600)
    metrics_listen: str = setting("", help="host:port of /metrics over HTTP; empty for none")
    log_format: LogFormat = setting(LogFormat.TEXT, help="form of the log on stderr")
    log_level: LogLevel = setting(LogLevel.INFO, help="least severe records written")

    def __post_init__(self) -> None:
        if not self.listen:
            raise ValueError("--listen needs at least one address")
        for address in self.listen:
            check_address("--listen", address)
        if self.metrics_listen:
            check_http_address("--metrics-listen", self.metrics_listen)
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("--tls-cert-file and --tls-key-file must be given together")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise ValueError("--tls-client-ca-file needs --tls-cert-file and --tls-key-file")


@dataclass(frozen=True)
class RpcChannelSettings:
    """How this process calls others."""

    service_token_file: Path | None = setting(
        None, help="file holding the token shown to other processes", must_exist=True
    )
    tls_ca_file: Path | None = setting(
        None,
        help="PEM authorities of the servers called; given, host:port addresses are called over TLS",
        must_exist=True,
    )
    tls_client_cert_file: Path | None = setting(None, help="PEM certificate shown to servers (mTLS)", must_exist=True)
    tls_client_key_file: Path | None = setting(None, help="PEM private key of tls_client_cert_file", must_exist=True)
    default_deadline_ms: int = setting(
        10_000, help="deadline of unary calls that are given none", minimum=1, maximum=3_600_000
    )
    channel_max_message_bytes: int = setting(
        32 * MEBIBYTE, help="largest message sent to or received from others", minimum=1024, maximum=1024 * MEBIBYTE
    )

    def __post_init__(self) -> None:
        if (self.tls_client_cert_file is None) != (self.tls_client_key_file is None):
            raise ValueError("--tls-client-cert-file and --tls-client-key-file must be given together")
        if self.tls_client_cert_file is not None and self.tls_ca_file is None:
            raise ValueError("--tls-client-cert-file needs --tls-ca-file")


def client_settings(
    tls_ca_file: str | Path | None = None,
    tls_client_cert_file: str | Path | None = None,
    tls_client_key_file: str | Path | None = None,
) -> RpcChannelSettings:
    """Return how a client of ours calls. InvalidArgument names the file without which another is of no use."""
    shown = {"tls_client_cert_file": tls_client_cert_file, "tls_client_key_file": tls_client_key_file}
    if any(shown.values()):
        for name, file in {**shown, "tls_ca_file": tls_ca_file}.items():
            if file is None:
                raise InvalidArgument.of(name, "must be given where a client's certificate or its key is")
    authorities, certificate, key = (
        Path(file) if file is not None else None for file in (tls_ca_file, tls_client_cert_file, tls_client_key_file)
    )
    return RpcChannelSettings(None, authorities, certificate, key)


def with_receiving_room(settings: RpcServerSettings, stream_count: int, message_bytes: int) -> RpcServerSettings:
    """Return the settings with room for so many streams, each of which may be receiving a message of so many bytes:
    where callers are not told apart, no more streams are opened than three quarters of the room for such take."""
    needed = (stream_count * 4 // 3 + 2) * message_bytes
    return replace(settings, max_receiving_bytes=max(settings.max_receiving_bytes, needed))


def reachable_address(address: str, hostname: str) -> str:
    """Return where other machines reach a process that listens on `address`: a wildcard becomes the host's name."""
    host, _, port = address.rpartition(":")
    return f"{hostname}:{port}" if host in WILDCARD_HOSTS else address


def is_unix(address: str) -> bool:
    return address.startswith("unix:")


def is_local(address: str) -> bool:
    """Whether only processes of this machine can reach the address."""
    return is_unix(address) or address.rpartition(":")[0] in LOOPBACK_HOSTS


def check_address(flag: str, address: str) -> None:
    """ValueError unless `address` is unix:/path or host:port."""
    if is_unix(address):
        path = address.removeprefix("unix:")
        if not path or len(path.encode()) > SOCKET_PATH_BYTES:
            limit = f"must have 1 to {SOCKET_PATH_BYTES} bytes"
            raise ValueError(f"{flag} {address}: the path {limit}, got {len(path.encode())}")
        return
    if not is_host_and_port(address):
        raise ValueError(f"{flag} must be unix:/path or host:port with a port of 0 to 65535, got {address!r}")


def check_http_address(flag: str, address: str) -> None:
    """ValueError unless `address` is host:port."""
    if is_unix(address) or not is_host_and_port(address):
        raise ValueError(f"{flag} must be host:port with a port of 0 to 65535, got {address!r}")


def is_host_and_port(address: str) -> bool:
    """Return whether the host may be one's name, or address, and the port is one."""
    host, _, port = address.rpartition(":")
    try:
        # What a resolver is asked for: two dots in a row are no name.
        host.encode("idna")
    except UnicodeError:
        return False
    return bool(host) and port.isdecimal() and int(port) <= 65535
