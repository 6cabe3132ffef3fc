"""Keys of tenants that a process takes beside the tokens of its file: by digest, as they were last put here."""

import time
from collections.abc import Callable, Iterable, Mapping

from pentimento.domain.identity import Caller, Role
from pentimento.domain.tenants import HashedKey, TenantKey
from pentimento.rpc.tokens import blinded


class KeyRing:
    """The keys that are taken now. They end at their time, whether anybody puts others here or not."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._keys: dict[bytes, tuple[TenantKey, Caller]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def replace(self, keys: Iterable[HashedKey], identities: Mapping[str, str] | None = None) -> None:
        """Take these keys from here on and no others; changes state. `identities`: of tenants, by their names, where
        they differ from those."""
        callers: dict[str, Caller] = {}
        fresh = {}
        for one in keys:
            identity = (identities or {}).get(one.key.tenant, one.key.tenant)
            caller = callers.setdefault(identity, Caller(identity, frozenset({Role.USER})))
            fresh[blinded(one.digest)] = (one.key, caller)
        self._keys = fresh

    def find(self, digest: bytes) -> Caller | None:
        """Return whose key has this blinded digest; None for an unknown one, and for one that has ended."""
        found = self._keys.get(digest)
        if found is None:
            return None
        key, caller = found
        return caller if key.is_good(self._wall()) else None
