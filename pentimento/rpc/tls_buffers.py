"""Bound the memory that asyncio holds for a TLS connection, also an idle one, from before its handshake on."""

from asyncio import sslproto

# Two records of TLS (RFC 8446, section 5.1). asyncio's own 256 KiB are 290 MiB for 1,024 idle connections.
BUFFER_BYTES = 32 * 1024


def bound_tls_buffers() -> None:
    """Let connections that this process makes from now on read TLS through BUFFER_BYTES each: asyncio has no setting
    for it."""
    sslproto.SSLProtocol.max_size = BUFFER_BYTES
