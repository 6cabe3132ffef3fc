"""Read the keys of signed addresses and webhooks from a file that frontdoor and edge share; it may change while they
run."""

from collections.abc import Callable
from pathlib import Path

from pentimento.domain.errors import InvalidArgument
from pentimento.files.signing_keys import read_signing_keys
from pentimento.rpc.kept_reading import KeptReading
from pentimento.settings import SettingsError

SigningKeys = Callable[[], tuple[bytes, ...]]


def kept_signing_keys(path: Path) -> SigningKeys:
    """Return a function that returns the file's current keys, the signing one first; the previous keys if the file has
    none now. SettingsError names the file if it has none at first."""
    return KeptReading([path], lambda: _read(path), "signing keys not reloaded, the previous ones are used").current


def _read(path: Path) -> tuple[bytes, ...]:
    """Return the keys of the file. SettingsError names it if it has none."""
    try:
        return read_signing_keys(path)
    except InvalidArgument as error:
        raise SettingsError(error.message) from error.__cause__
