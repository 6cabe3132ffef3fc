"""Present a server's certificate: read again when its files change, so that a renewed one needs no restart."""

import ssl
from collections.abc import Sequence
from threading import Lock
from typing import Any, Self

import grpc

from pentimento.rpc.kept_reading import KeptReading
from pentimento.rpc.pem_files import PemFiles, load


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
