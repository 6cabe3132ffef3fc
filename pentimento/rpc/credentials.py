"""TLS and mTLS from PEM files. Unix sockets are never wrapped: they are guarded by their file mode."""

import ssl
from pathlib import Path

import grpc

from pentimento.rpc.settings import RpcChannelSettings, RpcServerSettings
from pentimento.settings import SettingsError


def server_credentials(settings: RpcServerSettings) -> grpc.ServerCredentials | None:
    """Credentials of the host:port listeners; None without a certificate. With a client CA clients must show theirs.
    SettingsError when a file does not hold what it should: gRPC would only find that it cannot listen."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    server_tls(settings)
    pair = (read_pem(settings.tls_key_file), read_pem(settings.tls_cert_file))
    authorities = read_pem(settings.tls_client_ca_file) if settings.tls_client_ca_file else None
    return grpc.ssl_server_credentials([pair], authorities, require_client_auth=authorities is not None)


def server_tls(settings: RpcServerSettings) -> ssl.SSLContext | None:
    """Return the same for connections whose TLS ends before gRPC."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    load(context, settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    if settings.tls_client_ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load(context: ssl.SSLContext, certificate: Path | None, key: Path | None, authorities: Path | None) -> None:
    """Give the context what the files hold. SettingsError, with their names, where that is not what it should be."""
    try:
        if certificate is not None:
            # Nobody is there to be asked for the phrase of a locked key.
            context.load_cert_chain(certificate, key, password="")
        if authorities is not None:
            context.load_verify_locations(authorities)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(str(file) for file in (certificate, key, authorities) if file is not None)
        raise SettingsError(f"{files}: {error}") from error


def channel_credentials(settings: RpcChannelSettings) -> grpc.ChannelCredentials | None:
    """Credentials for host:port servers; None without authorities to check them by. SettingsError when a file does not
    hold what it should: gRPC would only find that nobody can be reached."""
    if settings.tls_ca_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load(context, settings.tls_client_cert_file, settings.tls_client_key_file, settings.tls_ca_file)
    key = read_pem(settings.tls_client_key_file) if settings.tls_client_key_file else None
    certificate = read_pem(settings.tls_client_cert_file) if settings.tls_client_cert_file else None
    return grpc.ssl_channel_credentials(read_pem(settings.tls_ca_file), key, certificate)


def read_pem(path: Path) -> bytes:
    """The file's bytes. SettingsError when unreadable or without a PEM block: gRPC itself would say so only later."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    if b"-----BEGIN " not in data:
        raise SettingsError(f"{path}: holds no PEM block")
    return data
