"""Read files of certificates, keys and authorities, and validate them before a server or client uses them."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from pentimento.settings import SettingsError


@dataclass(frozen=True)
class PemFiles:
    """Name the files of one side of a connection."""

    certificate: Path | None
    key: Path | None
    authorities: Path | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the given files."""
        return tuple(path for path in (self.certificate, self.key, self.authorities) if path is not None)


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
