"""Make TLS and mTLS credentials from PEM files. Unix sockets are never wrapped: their file mode protects them."""

import functools
import ssl
from typing import Any

import grpc

from pentimento.rpc.kept_reading import KeptReading
from pentimento.rpc.pem_files import PemFiles, Pems, load
from pentimento.rpc.settings import RpcChannelSettings, RpcServerSettings
from pentimento.rpc.shown_certificate import CurrentContext, ShownCertificate
from pentimento.rpc.watched_file import Version, version_of

# Cached credentials of one process: each set of files in its current and its previous state.
KEPT_COUNT = 8


def server_credentials(settings: RpcServerSettings) -> grpc.ServerCredentials | None:
    """Return the credentials of the host:port listeners; None without a certificate. With a client CA clients must
    present certificates. SettingsError for an invalid file: gRPC would only report that it cannot listen."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    shown = ShownCertificate(served_files(settings))
    required = settings.tls_client_ca_file is not None
    renewed: Any = shown.new_configuration  # The stub leaves out that it may return None.
    return grpc.dynamic_ssl_server_credentials(shown.first_configuration, renewed, required)


def server_tls(settings: RpcServerSettings, *protocols: str) -> ssl.SSLContext | None:
    """Return the same for connections that end TLS before gRPC, and that agree on one of `protocols` (ALPN), or on any
    if there are none."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return CurrentContext(ShownCertificate(served_files(settings), protocols))


def served_files(settings: RpcServerSettings) -> PemFiles:
    return PemFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)


class ClientCredentials:
    """Provide the credentials for calls to host:port servers; read again when the files change. SettingsError if they
    are invalid at first."""

    def __init__(self, settings: RpcChannelSettings) -> None:
        not_reloaded = "certificates not reloaded, the previous ones are used"
        paths = called_files(settings).paths
        self._reading = KeptReading(paths, lambda: channel_credentials(settings), not_reloaded)

    def current(self) -> grpc.ChannelCredentials | None:
        """Return the current credentials: the same object until the files change; None for no TLS."""
        return self._reading.current()


def channel_credentials(settings: RpcChannelSettings) -> grpc.ChannelCredentials | None:
    """Return credentials for host:port servers, the same object until the files change; None without authorities that
    verify servers. SettingsError for an invalid file: gRPC would only report that no server can be reached."""
    if settings.tls_ca_file is None:
        return None
    files = called_files(settings)
    return _credentials_of(_judged(files, tuple(map(version_of, files.paths))))


def called_files(settings: RpcChannelSettings) -> PemFiles:
    return PemFiles(settings.tls_client_cert_file, settings.tls_client_key_file, settings.tls_ca_file)


@functools.lru_cache(KEPT_COUNT)
def _judged(files: PemFiles, versions: tuple[Version | None, ...]) -> Pems:
    """Validate the files once per version: event loops open channels, the edge one for every caller, and the validation
    of a system's authorities takes 50 ms."""
    return load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files)


@functools.lru_cache(KEPT_COUNT)
def _credentials_of(held: Pems) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(held.authorities, held.key or None, held.certificate or None)
