"""TLS and mTLS from PEM files. Unix sockets are never wrapped: they are guarded by their file mode."""

import functools
import ssl
from typing import Any

import grpc

from pentimento.rpc.kept_reading import KeptReading
from pentimento.rpc.pem_files import PemFiles, Pems, load
from pentimento.rpc.settings import RpcChannelSettings, RpcServerSettings
from pentimento.rpc.shown_certificate import CurrentContext, ShownCertificate
from pentimento.rpc.watched_file import Version, version_of

# What one process calls others by: each set of files as it is now and as it was before.
KEPT_COUNT = 8


def server_credentials(settings: RpcServerSettings) -> grpc.ServerCredentials | None:
    """Credentials of the host:port listeners; None without a certificate. With a client CA clients must show theirs.
    SettingsError when a file does not hold what it should: gRPC would only find that it cannot listen."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    shown = ShownCertificate(served_files(settings))
    required = settings.tls_client_ca_file is not None
    renewed: Any = shown.new_configuration  # The stub leaves out that it may return None.
    return grpc.dynamic_ssl_server_credentials(shown.first_configuration, renewed, required)


def server_tls(settings: RpcServerSettings, *protocols: str) -> ssl.SSLContext | None:
    """Return the same for connections whose TLS ends before gRPC, and on which one of these protocols (ALPN) is spoken;
    whatever is wanted without any."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return CurrentContext(ShownCertificate(served_files(settings), protocols))


def served_files(settings: RpcServerSettings) -> PemFiles:
    return PemFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)


class ClientCredentials:
    """By what servers at host:port are called; read again when the files change. SettingsError where they do not hold
    what they should at first."""

    def __init__(self, settings: RpcChannelSettings) -> None:
        not_reloaded = "certificates not reloaded, the previous ones are used"
        paths = called_files(settings).paths
        self._reading = KeptReading(paths, lambda: channel_credentials(settings), not_reloaded)

    def current(self) -> grpc.ChannelCredentials | None:
        """Return what to call with now: the same for as long as the files hold the same; None for no TLS."""
        return self._reading.current()


def channel_credentials(settings: RpcChannelSettings) -> grpc.ChannelCredentials | None:
    """Credentials for host:port servers, the same for as long as the files hold the same; None without authorities to
    check servers by. SettingsError when a file does not hold what it should: gRPC would only find that nobody can be
    reached."""
    if settings.tls_ca_file is None:
        return None
    files = called_files(settings)
    return _credentials_of(_judged(files, tuple(map(version_of, files.paths))))


def called_files(settings: RpcChannelSettings) -> PemFiles:
    return PemFiles(settings.tls_client_cert_file, settings.tls_client_key_file, settings.tls_ca_file)


@functools.lru_cache(KEPT_COUNT)
def _judged(files: PemFiles, versions: tuple[Version | None, ...]) -> Pems:
    """Event loops open channels, the edge's for every caller, and to judge the authorities that come with a system
    takes 50 ms."""
    return load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files)


@functools.lru_cache(KEPT_COUNT)
def _credentials_of(held: Pems) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(held.authorities, held.key or None, held.certificate or None)
