"""Deleting objects from a store that may refuse some of them, or be away."""

import time
from collections.abc import Collection, Sequence

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.objects import ObjectStore

# So many objects that cannot be deleted, or one of which that is told so late, and the store is taken for away.
_MOST_REFUSED, _REFUSAL_S = 8, 5.0
# Of a store that was away for long; all of them are asked for again then.
_MOST_KEPT_BACK = 4096


class Deletion:
    """What the store refuses to delete keeps nothing else there: it is kept back until all others are gone."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._kept_back: set[str] = set()
        self._refusal: StoreUnavailable | None = None

    @property
    def kept_back_count(self) -> int:
        """Return how many objects wait until all others are gone."""
        return len(self._kept_back)

    def due(self, keys: Sequence[str]) -> list[str]:
        """Return the keys without those that are kept back."""
        return [key for key in keys if key not in self._kept_back]

    def delete(self, keys: Collection[str]) -> tuple[list[str], StoreUnavailable | None]:
        """Delete the objects; return the keys of those that are gone, and why no more are to be asked for: a store
        that is away is not asked for each."""
        gone: list[str] = []
        refused_count = 0
        for key in keys:
            began_s = time.monotonic()
            try:
                self._objects.delete(key)
                gone.append(key)
            except StoreUnavailable as error:
                self._keep_back(key, error)
                refused_count += 1
                if refused_count == _MOST_REFUSED or time.monotonic() - began_s > _REFUSAL_S:
                    return gone, error
        return gone, None

    def end(self) -> None:
        """All others are gone: begin anew with what was kept back. Raises StoreUnavailable where there was any."""
        refusal, self._refusal = self._refusal, None
        self._kept_back.clear()
        if refusal is not None:
            raise refusal

    def _keep_back(self, key: str, refusal: StoreUnavailable) -> None:
        if len(self._kept_back) >= _MOST_KEPT_BACK:
            self._kept_back.clear()
        self._kept_back.add(key)
        self._refusal = refusal
