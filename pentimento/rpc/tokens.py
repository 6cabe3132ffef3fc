"""Identify callers by token. A token file holds digests, so that a reader of it learns no token:

    [[token]]
    sha256 = "<64 hex digits>"     # python -c 'from pentimento.rpc import hash_token; print(hash_token(input()))'
    tenant = "acme"
    roles = ["user"]               # user, service, admin, tenant-admin

A token is 256 random bits (`new_token`), so a plain digest protects it. It travels as metadata `authorization: Bearer
…`. The file is read again when it changes (looked at once a second at most) and on SIGHUP. A changed file that is
malformed changes nothing and is reported in the log. An empty one is being written: it rejects every token only after
EMPTY_S. Running calls continue under their tokens.

Tenants' keys are accepted in addition to the token file: by digest, replaced as a whole (`KeyRing`).
"""

import hashlib
import json
import logging
import re
import secrets
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pentimento.domain.errors import Unauthenticated
from pentimento.domain.tenants import OPEN_CALLER, RESERVED_PREFIX, Caller, HashedKey, Role, TenantKey
from pentimento.rpc.context import BEARER
from pentimento.rpc.watched_file import WatchedFile, text_of
from pentimento.settings import SettingsError

logger = logging.getLogger(__name__)

BLINDING_KEY = secrets.token_bytes(32)
DIGEST = re.compile(r"[0-9a-f]{64}")
GRANTABLE = frozenset(Role) - {Role.ANYONE}
ENTRY_KEYS = frozenset({"sha256", "tenant", "roles"})
# A writer in place empties the file first, and may take a while to produce the content.
EMPTY_S = 5.0


def new_token() -> str:
    """Return a new token: 256 random bits, as 43 characters that survive every shell and header."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Return a token's digest for a token file: its SHA-256, 64 hex digits."""
    return hashlib.sha256(token.strip().encode()).hexdigest()


def blinded(digest: str) -> bytes:
    """Return the digest under a key of this process: without the key a look-up's duration reveals nothing, as in a
    comparison in constant time, for any number of tokens."""
    return hashlib.blake2b(digest.encode(), key=BLINDING_KEY, digest_size=32).digest()


def token_entry(token: str, tenant: str, roles: frozenset[Role]) -> str:
    """Return the lines to add to a token file. A tenant's name is escaped as TOML text: a stranger may have chosen it,
    and it must not end the entry and begin another."""
    name = json.dumps(tenant, ensure_ascii=False).replace("\x7f", "\\u007f")
    names = ", ".join(f'"{role.value}"' for role in sorted(roles, key=lambda role: role.value))
    return f'[[token]]\nsha256 = "{hash_token(token)}"\ntenant = {name}\nroles = [{names}]\n'


def parse_tokens(text: str, origin: str) -> dict[str, Caller]:
    """Return the callers by digest. SettingsError names the invalid entry."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{origin}: not valid TOML: {error}") from error
    entries = document.get("token", [])
    if set(document) - {"token"} or not isinstance(entries, list):
        raise SettingsError(f"{origin}: must hold [[token]] entries and nothing else")
    callers: dict[str, Caller] = {}
    for number, entry in enumerate(entries, start=1):
        digest, caller = parse_entry(entry, f"{origin}: [[token]] number {number}")
        if digest in callers:
            raise SettingsError(f"{origin}: [[token]] number {number} repeats the sha256 of another")
        callers[digest] = caller
    return callers


def parse_entry(entry: Any, where: str) -> tuple[str, Caller]:
    if not isinstance(entry, dict) or set(entry) != ENTRY_KEYS:
        raise SettingsError(f"{where} must be a table with exactly the keys {', '.join(sorted(ENTRY_KEYS))}")
    if not isinstance(entry["sha256"], str) or not DIGEST.fullmatch(entry["sha256"]):
        raise SettingsError(f"{where}: sha256 must be 64 lower-case hex digits")
    if entry["sha256"] == hash_token(""):
        raise SettingsError(f"{where}: sha256 must be that of a token, not of an empty text: anybody would have it")
    if not isinstance(entry["tenant"], str) or not entry["tenant"]:
        raise SettingsError(f"{where}: tenant must be a text of at least 1 character")
    if entry["tenant"].startswith(RESERVED_PREFIX):
        raise SettingsError(f"{where}: tenant must not begin with {RESERVED_PREFIX!r}: such names are the suite's own")
    return entry["sha256"], Caller(entry["tenant"], parse_roles(entry["roles"], where))


def parse_roles(names: Any, where: str) -> frozenset[Role]:
    known = {role.value: role for role in GRANTABLE}
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name in known for name in names):
        raise SettingsError(f"{where}: roles must be a list of {', '.join(sorted(known))}")
    return frozenset(known[name] for name in names)


def read_tokens(text: str, origin: str) -> dict[bytes, Caller]:
    """Return the callers by blinded digest. SettingsError if the text is malformed."""
    return {blinded(digest): caller for digest, caller in parse_tokens(text, origin).items()}


class TokenFile:
    """Hold callers by token, updated from their file. `keys` are accepted in addition."""

    def __init__(
        self, path: Path, monotonic: Callable[[], float] = time.monotonic, keys: "KeyRing | None" = None
    ) -> None:
        self._keys = keys
        self._monotonic = monotonic
        self._file = WatchedFile(path, monotonic)
        self._callers = read_tokens(text_of(path), str(path))
        # When the file, which had tokens before, became empty.
        self._empty_at: float | None = None

    def identify(self, authorization: str | bytes | None) -> Caller | None:
        """Return the caller of an `authorization` value; None without one. Unauthenticated if it is malformed or
        unknown."""
        if self._file.changed():
            self.reload()
        if self._empty_at is not None and self._monotonic() - self._empty_at >= EMPTY_S:
            self._take("")
        if authorization is None:
            return None
        if not isinstance(authorization, str) or not authorization.startswith(BEARER):
            raise Unauthenticated("MALFORMED_TOKEN", 'metadata "authorization" must be "Bearer <token>", once')
        digest = blinded(hash_token(authorization.removeprefix(BEARER)))
        caller = self._callers.get(digest)
        if caller is None and self._keys is not None:
            caller = self._keys.find(digest)
        if caller is None:
            raise Unauthenticated("UNKNOWN_TOKEN", "the token is not known")
        return caller

    def reload(self) -> None:
        """Read the file again; a malformed one changes nothing, and an empty one only once it has stayed empty."""
        try:
            text = text_of(self._file.path)
            if text.strip() or not self._callers:
                self._take(text)
            elif self._empty_at is None:
                self._empty_at = self._monotonic()
                logger.warning("token file is empty, the previous tokens stay valid for seconds")
        except SettingsError as error:
            self._file.read_in_vain(error)
            logger.error("token file not reloaded, the previous tokens stay valid", extra={"problem": str(error)})

    def _take(self, text: str) -> None:
        self._empty_at = None
        self._callers = read_tokens(text, str(self._file.path))
        logger.info("token file reloaded", extra={"token_count": len(self._callers)})


class OpenDoor:
    """Identify every caller as the default tenant with every role, if no token file is configured."""

    def identify(self, authorization: str | bytes | None) -> Caller | None:
        return OPEN_CALLER

    def reload(self) -> None:
        """Do nothing: there is no file."""


Identities = TokenFile | OpenDoor


def open_identities(path: Path | None, keys: "KeyRing | None" = None) -> Identities:
    """Return the callers of the token file and `keys`; without a file, an open door for every caller."""
    return OpenDoor() if path is None else TokenFile(path, keys=keys)


class KeyRing:
    """Hold the accepted keys. They end at their time, also without a replacement."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._keys: dict[bytes, tuple[TenantKey, Caller]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def replace(self, keys: Iterable[HashedKey], identities: Mapping[str, str] | None = None) -> None:
        """Accept only these keys from here on. `identities`: of tenants, by name, if they differ from the name."""
        callers: dict[str, Caller] = {}
        fresh = {}
        for one in keys:
            identity = (identities or {}).get(one.key.tenant, one.key.tenant)
            caller = callers.setdefault(identity, Caller(identity, frozenset({Role.USER})))
            fresh[blinded(one.digest)] = (one.key, caller)
        self._keys = fresh

    def find(self, digest: bytes) -> Caller | None:
        """Return the caller with this blinded digest of a key; None for an unknown or ended key."""
        found = self._keys.get(digest)
        if found is None:
            return None
        key, caller = found
        return caller if key.is_good(self._wall()) else None
