"""Make TLS and mTLS credentials from PEM files, which are read again when they change, so that a renewed certificate
needs no restart. Unix sockets are never wrapped: their file mode protects them.
"""

import functools
import ssl
from asyncio import sslproto
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Self

import grpc

from pentimento.rpc.settings import PemFiles, TlsSettings
from pentimento.rpc.watched_file import KeptReading, Version, version_of
from pentimento.settings import SettingsError


@dataclass(frozen=True)
class Pems:
    """Hold the files' content; empty for a missing file."""

    certificate: bytes
    key: bytes
    authorities: bytes


def load(context: ssl.SSLContext, files: PemFiles) -> Pems:
    """Load the files into the context, and return their content: OpenSSL reads only files, and gRPC takes only bytes.
    SettingsError, with their names, if the content is invalid, or changes during the load."""
    held = read(files)
    try:
        if files.certificate is not None:
            # The empty password avoids a prompt for the phrase of a locked key.
            context.load_cert_chain(files.certificate, files.key, password="")
        if files.authorities is not None:
            context.load_verify_locations(files.authorities)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"{names(files)}: {error}") from error
    if read(files) != held:
        raise SettingsError(f"{names(files)}: being written")
    return held


def names(files: PemFiles) -> str:
    return ", ".join(map(str, files.paths))


def read(files: PemFiles) -> Pems:
    held = (read_pem(path) if path is not None else b"" for path in (files.certificate, files.key, files.authorities))
    return Pems(*held)


def read_pem(path: Path) -> bytes:
    """Return the file's bytes. SettingsError if it is unreadable or has no PEM block: gRPC itself would report that
    later."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    if b"-----BEGIN " not in data:
        raise SettingsError(f"{path}: holds no PEM block")
    return data


class ShownCertificate:
    """Hold a certificate, its key, and the authorities of clients if these must present certificates too. Connections
    made after a change of the files, checked once a second at most, get the new content. If the files do not match, as
    between the writes of a key and of its certificate, the previous content stays in use.

    SettingsError if a file is invalid at first. For any thread.
    """

    def __init__(self, files: PemFiles, protocols: Sequence[str] = ()) -> None:
        """Read the files. `protocols`: offered to connections (ALPN); empty for no ALPN."""
        self._files, self._protocols = files, list(protocols)
        self._lock = Lock()
        self._reading = KeptReading(files.paths, self._read, "certificate not reloaded, the previous one is used")
        _, self.first_configuration = self._reading.current()
        self._told = self.first_configuration

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a connection made now."""
        with self._lock:
            context, _ = self._reading.current()
            return context

    def new_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the configuration for gRPC if it differs from that of the previous call, or from the first; else
        None."""
        with self._lock:
            before, (_, self._told) = self._told, self._reading.current()
            return None if self._told is before else self._told

    def _read(self) -> tuple[ssl.SSLContext, grpc.ServerCertificateConfiguration]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        held = load(context, self._files)
        if self._files.authorities is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        pair = held.key, held.certificate
        return context, grpc.ssl_server_certificate_configuration([pair], held.authorities or None)


class CurrentContext(ssl.SSLContext):
    """Replace the one context of all connections of a listener: make each connection with the current context."""

    def __new__(cls, shown: ShownCertificate) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, shown: ShownCertificate) -> None:
        self._shown = shown

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:
        """Return a connection over these buffers, as `ssl.SSLContext.wrap_bio`: the only method that asyncio uses."""
        return self._shown.context().wrap_bio(*given, **named)


# Cached credentials of one process: each set of files in its current and its previous state.
KEPT_COUNT = 8


def server_credentials(files: PemFiles) -> grpc.ServerCredentials | None:
    """Return the credentials of host:port listeners; None without a certificate. With authorities clients must present
    certificates. SettingsError for an invalid file: gRPC would only report that it cannot listen."""
    if files.certificate is None:
        return None
    shown = ShownCertificate(files)
    renewed: Any = shown.new_configuration  # The stub leaves out that it may return None.
    return grpc.dynamic_ssl_server_credentials(shown.first_configuration, renewed, files.authorities is not None)


def server_tls(files: PemFiles, *protocols: str) -> ssl.SSLContext | None:
    """Return the same for connections that end TLS before gRPC, and that agree on one of `protocols` (ALPN), or on any
    if there are none."""
    return CurrentContext(ShownCertificate(files, protocols)) if files.certificate is not None else None


class ClientCredentials:
    """Provide the credentials for calls to host:port servers; read again when the files change. SettingsError if they
    are invalid at first."""

    def __init__(self, tls: TlsSettings) -> None:
        not_reloaded = "certificates not reloaded, the previous ones are used"
        self._reading = KeptReading(tls.files.paths, lambda: channel_credentials(tls), not_reloaded)

    def current(self) -> grpc.ChannelCredentials | None:
        """Return the current credentials: the same object until the files change; None for no TLS."""
        return self._reading.current()


def channel_credentials(tls: TlsSettings) -> grpc.ChannelCredentials | None:
    """Return credentials for host:port servers, the same object until the files change; None without authorities that
    verify servers. SettingsError for an invalid file: gRPC would only report that no server can be reached."""
    if tls.files.authorities is None:
        return None
    return _credentials_of(_judged(tls.files, tuple(map(version_of, tls.files.paths))))


@functools.lru_cache(KEPT_COUNT)
def _judged(files: PemFiles, versions: tuple[Version | None, ...]) -> Pems:
    """Validate the files once per version: event loops open channels, the edge one for every caller, and the validation
    of a system's authorities takes 50 ms."""
    return load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files)


@functools.lru_cache(KEPT_COUNT)
def _credentials_of(held: Pems) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(held.authorities, held.key or None, held.certificate or None)


# Two records of TLS (RFC 8446, section 5.1). asyncio's own 256 KiB are 290 MiB for 1,024 idle connections.
BUFFER_BYTES = 32 * 1024


def bound_tls_buffers() -> None:
    """Let connections that this process makes from now on read TLS through BUFFER_BYTES each: asyncio has no setting
    for it."""
    sslproto.SSLProtocol.max_size = BUFFER_BYTES
