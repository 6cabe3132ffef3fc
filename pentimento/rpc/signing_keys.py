"""The keys of signed addresses and webhooks, in a file that frontdoor and edge share; it may change while they run."""

from collections.abc import Callable
from pathlib import Path

from pentimento.domain.errors import InvalidArgument
from pentimento.files.signing_keys import read_signing_keys
from pentimento.rpc.kept_reading import KeptReading
from pentimento.settings import SettingsError

SigningKeys = Callable[[], tuple[bytes, ...]]


def kept_signing_keys(path: Path) -> SigningKeys:
    """Return what gives the keys of that file as they are now, the one that signs first; those before where it holds
    none any more. SettingsError names it where it has none at first."""
    return KeptReading([path], lambda: _read(path), "signing keys not reloaded, the previous ones are used").current


def _read(path: Path) -> tuple[bytes, ...]:
    """Return the keys of that file. SettingsError names it where it has none."""
    try:
        return read_signing_keys(path)
    except InvalidArgument as error:
        raise SettingsError(error.message) from error.__cause__
