"""The certificate that a server shows: read again when its files change, so that a renewed one needs no restart."""

import ssl
from collections.abc import Sequence
from threading import Lock
from typing import Any, Self

import grpc

from pentimento.rpc.kept_reading import KeptReading
from pentimento.rpc.pem_files import PemFiles, load


class ShownCertificate:
    """A certificate, its key, and the authorities of clients where these must show one, too. Connections that are made
    after a change of the files, looked for once a second at most, are shown what these hold then. Where that does not
    fit together, as between the writing of a key and of its certificate, what was read before is shown on.

    SettingsError when a file does not hold what it should. For any thread.
    """

    def __init__(self, files: PemFiles, protocols: Sequence[str] = ()) -> None:
        """`protocols`: what connections may agree on (ALPN); nothing is said of that without any."""
        self._files, self._protocols = files, list(protocols)
        self._lock = Lock()
        self._reading = KeptReading(files.paths, self._read, "certificate not reloaded, the previous one is used")
        _, self.first_configuration = self._reading.current()
        self._told = self.first_configuration

    def context(self) -> ssl.SSLContext:
        """Return what a connection is to be made with that is made now."""
        with self._lock:
            context, _ = self._reading.current()
            return context

    def new_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the same as gRPC has it, where it is another than at the call before, or than the first; else None."""
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
    """Stands where one context is taken for all connections of a listener, and makes each of them with the one that is
    current."""

    def __new__(cls, shown: ShownCertificate) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, shown: ShownCertificate) -> None:
        self._shown = shown

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:
        """Return a connection over these buffers, as `ssl.SSLContext.wrap_bio`: all that asyncio asks for."""
        return self._shown.context().wrap_bio(*given, **named)
