"""Files of certificates, keys and authorities: read, and judged before anything is served or called with them."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from pentimento.settings import SettingsError


@dataclass(frozen=True)
class PemFiles:
    """Files of one side of a connection, and in the same form what they hold."""

    certificate: Path | None
    key: Path | None
    authorities: Path | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return those that there are."""
        return tuple(path for path in (self.certificate, self.key, self.authorities) if path is not None)


@dataclass(frozen=True)
class Pems:
    """What such files hold; nothing without one."""

    certificate: bytes
    key: bytes
    authorities: bytes


def load(context: ssl.SSLContext, files: PemFiles) -> Pems:
    """Give the context what the files hold, and return it: OpenSSL reads files alone, and gRPC takes bytes alone.
    SettingsError, with their names, where that is not what it should be, or another a moment later."""
    held = read(files)
    try:
        if files.certificate is not None:
            # Nobody is there to be asked for the phrase of a locked key.
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
    """The file's bytes. SettingsError when unreadable or without a PEM block: gRPC itself would say so only later."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    if b"-----BEGIN " not in data:
        raise SettingsError(f"{path}: holds no PEM block")
    return data
