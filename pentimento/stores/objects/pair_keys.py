"""Name the objects of compared pairs: `pairs/CASCADE/TIME-TENANT/DIGEST-SIZE`.

A key has everything that a listing is read for: the cascade and the tenant (hashed), the age, and the reference.
"""

import hashlib
import re

from pentimento.domain.generation import ObjectReference

PREFIX = "pairs"
_HASH_LENGTH = 16
_KEY = re.compile(rf"{PREFIX}/[0-9a-f]{{16}}/[0-9a-f]{{12}}-[0-9a-f]{{16}}/([0-9a-f]{{64}})-([0-9]{{1,12}})")


def cascade_prefix(cascade: str) -> str:
    """Return the prefix of a cascade's pairs; their keys ascend by age, oldest first."""
    return f"{PREFIX}/{_hashed(cascade)}/"


def pair_key(cascade: str, tenant: str, at_s: float, data: bytes) -> str:
    """Return the key of a pair with that content, stored at `at_s` (seconds since 1970)."""
    where = f"{cascade_prefix(cascade)}{int(at_s * 1000):012x}-{_hashed(tenant)}"
    return f"{where}/{hashlib.sha256(data).hexdigest()}-{len(data)}"


def reference_of(key: str) -> ObjectReference | None:
    """Return the reference in a pair's key; None for another key."""
    found = _KEY.fullmatch(key)
    return ObjectReference(key, f"sha256:{found[1]}", int(found[2])) if found is not None else None


def is_of_tenant(key: str, tenant: str) -> bool:
    """Return whether the pair is of a request of that tenant."""
    return f"-{_hashed(tenant)}/" in key


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]
