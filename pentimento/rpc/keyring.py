"""Hold the tenants' keys that a process accepts in addition to its token file: by digest, replaced as a whole."""

import time
from collections.abc import Callable, Iterable, Mapping

from pentimento.domain.identity import Caller, Role
from pentimento.domain.tenants import HashedKey, TenantKey
from pentimento.rpc.tokens import blinded


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
