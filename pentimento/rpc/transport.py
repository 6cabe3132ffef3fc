"""Set the options of the HTTP/2 connections, on both sides, in one place because they must agree, and create Unix
socket files: private to their owner, not stolen from a living server, and removed at the end.

A side with open calls that receives nothing for KEEPALIVE_TIME_MS pings, and drops the peer KEEPALIVE_TIMEOUT_MS later:
a stopped or unplugged peer is noticed within 2.5 s. Servers accept pings every MIN_PING_INTERVAL_MS, so that a suite's
client never receives `too_many_pings`; faster pinging is answered with a GOAWAY as in any gRPC server.
"""

import fcntl
import os
import resource
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pentimento.rpc.settings import ServerBounds, is_unix
from pentimento.settings import SettingsError

Options = tuple[tuple[str, int | str], ...]

KEEPALIVE_TIME_MS = 1000
KEEPALIVE_TIMEOUT_MS = 1500
MIN_PING_INTERVAL_MS = 500
# Per connection. A gRPC client holds further calls until one ends, so that no server can reject them: a backend with
# one connection needs one for each image in flight, waiting ones included.
MAX_CONCURRENT_STREAMS = 1024
MAX_PENDING_CALLS = 4096
# gRPC ends calls that wait longer for the event loop as CANCELLED, without a reason; by default after 30 s, which a
# burst may take on a busy machine. A call's own deadline bounds its wait.
MAX_PENDING_S = 3600
# To or from other processes.
MAX_MESSAGE_BYTES = ServerBounds.max_message_bytes
UNREAD_BYTES = 16 * 1024
MAX_IDLE_MS = 300_000
HANDSHAKE_TIMEOUT_MS = 10_000
# A slower connection attempt is repeated, and calls that wait for it fail.
CONNECT_TIMEOUT_MS = 1000

KEEPALIVE: Options = (
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Without this option grpcio 1.85 waits a minute for an unanswered ping, at any keepalive timeout.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
)


def server_options(bounds: ServerBounds, largest_request_bytes: int, relayed_count: int = 0) -> Options:
    """Return the options of a server that receives the connections of `relayed_count` addresses through one socket."""
    return (
        *KEEPALIVE,
        ("grpc.max_receive_message_length", largest_request_bytes),
        ("grpc.max_send_message_length", bounds.max_message_bytes),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        # Without this a second process binds the same port and takes half of the calls.
        ("grpc.so_reuseport", 0),
        # The relay bounds its connections: while one replaces another both exist.
        *peer_bounds(bounds.max_connections * max(2 * relayed_count, 1)),
    )


def peer_bounds(max_connections: int) -> Options:
    """Return the bounds on the memory that an unidentified peer may use."""
    return (
        # Only identity: a compressed message is rejected before it is inflated.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # Bytes that a peer may send before its message is requested; a window that grows by itself would allow more.
        ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_concurrent_streams", MAX_CONCURRENT_STREAMS),
        # Counts streams that ended for the peer but not yet for us, and resets streams within the peer's limit.
        ("grpc.http.overload_protection", 0),
        # Calls that wait for the event loop. Beyond, gRPC resets them at random, without a reason.
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
        ("grpc.server_max_unrequested_time_in_server", MAX_PENDING_S),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_connection_idle_ms", MAX_IDLE_MS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
    )


def channel_options() -> Options:
    return (
        *KEEPALIVE,
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # A returning peer is found again within a second or two, not after gRPC's two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # Calls inside the suite never use the HTTP proxy of the environment.
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
    )


# Files and sockets to other services, in addition to connections.
OTHER_FILES = 256
# A relayed connection needs its own, and both ends of the socket to gRPC.
RELAYED_FILES = 3


def allow_files(count: int) -> None:
    """Let this process open `count` files, up to its hard limit. The usual soft limit is 1024, the bound of
    connections: at the limit a new connection could not be accepted, and so could not replace another."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def files_of(listen: Sequence[str], max_connections: int, *, takes_turns: bool) -> int:
    """Return how many files a process has open when its server has all its connections."""
    of_each = sum(RELAYED_FILES if takes_turns and not is_unix(address) else 1 for address in listen)
    return of_each * max_connections + OTHER_FILES


OWNER_ONLY_UMASK = 0o177


@contextmanager
def claimed_socket(path: Path) -> Iterator[None]:
    """Wrap the bind of a server: the path is free, its directory exists, and the socket will be mode 0600.

    gRPC unlinks any file at the path, so it is checked before. SettingsError if a server answers there, or the path
    leads to a file that is no socket.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(path.parent):
        remove_stale(path)
        previous = os.umask(OWNER_ONLY_UMASK)
        try:
            yield
        finally:
            os.umask(previous)


SocketFile = tuple[Path, int, int, int]


def socket_file(path: Path) -> SocketFile:
    """Return the identity of the socket at the path, which differs from a later one of another server."""
    found = path.lstat()
    # File numbers are reused, by some file systems immediately.
    return path, found.st_dev, found.st_ino, found.st_mtime_ns


def remove_own(file: SocketFile) -> None:
    """Remove the socket, unless another server, which found no server answering, has replaced it."""
    path = file[0]
    # The next server takes over a socket that stays.
    with suppress(OSError), locked(path.parent):
        if socket_file(path) == file:
            path.unlink()


def private_directory(name: str) -> Path:
    """Return the directory of that name in the temporary one, private to this user. SettingsError if another user
    created it."""
    directory = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SettingsError(f"{directory} must be a directory of this user alone; remove it")
    return directory


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep two processes from checking and binding at the same time; held for the length of a bind."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SettingsError(f"--listen unix:{path}: exists and is no socket")
    if is_answered(path):
        raise SettingsError(f"--listen unix:{path}: another process listens there")
    path.unlink(missing_ok=True)


def is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # A full backlog or a forbidden path: a server exists.
            return True
        return True
