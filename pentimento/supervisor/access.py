"""Provide the tokens of a suite with a token file: its processes need one to call each other."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from pentimento.domain.tenants import DEFAULT_TENANT, Role
from pentimento.files.ed25519_keys import keep_signing_keys, new_private_key
from pentimento.files.private_files import keep_private_file, replace_file
from pentimento.rpc.tokens import new_token, parse_tokens, token_entry
from pentimento.settings import SettingsError

LOOK_S = 1.0
SUITE_ROLES = frozenset({Role.SERVICE, Role.ADMIN})


class SuiteTokens:
    """Hold the operator's tokens and the suite's own one, in a file next to the sockets that only this user can read.

    The suite's own token is new at every start and never leaves the machine.
    """

    def __init__(self, given: Path, directory: Path) -> None:
        self._given = given
        self._secret = new_token()
        # Version of the operator's file at the last write.
        self._version: tuple[int, int, int] | None = None
        self.table = directory / "tokens.toml"
        self.service_token = directory / "service-token"

    def write(self) -> None:
        """Write both files. Raises SettingsError that names the wrong entry, or the file that is not text."""
        try:
            version, text = self._given_version(), self._given.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self._given}: cannot be read: {error}") from error
        parse_tokens(text, str(self._given))
        table = f"{text}\n{token_entry(self._secret, DEFAULT_TENANT, SUITE_ROLES)}"
        replace_file(self.table, table, mode=0o600)
        replace_file(self.service_token, self._secret + "\n", mode=0o600)
        self._version = version

    async def follow(self, complain: Callable[[str], None]) -> None:
        """Apply changes of the operator's file; report a wrong one once through `complain`, and ignore it."""
        told = ""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if self._given_version() != self._version:
                    self.write()
                told = ""
            except (OSError, SettingsError) as error:
                if str(error) != told:
                    told = str(error)
                    complain(f"{self._given}: {error}")

    def _given_version(self) -> tuple[int, int, int]:
        status = self._given.stat()
        return status.st_mtime_ns, status.st_ino, status.st_size


def write_grant_key(directory: Path) -> Path:
    """Write a new key with which this suite's gateway signs grants, and return its file."""
    path = directory / "grant-key"
    replace_file(path, new_token() + "\n", mode=0o600)
    return path


def keep_signing_key(directory: Path) -> Path:
    """Return the file of the key that signs webhooks and the addresses of images. The key is made once, so that
    signatures stay valid after a restart."""
    path = directory / "signing-key"
    keep_signing_keys(path)
    return path


def keep_receipt_key(directory: Path) -> Path:
    """Return the file of the key that signs receipts of erased tenants. The key is made once."""
    path = directory / "receipt-key.pem"
    keep_private_file(path, new_private_key)
    return path
