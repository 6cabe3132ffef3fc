"""What the stores raise, under the domain's errors.

NotFound             ObjectMissing       no object under that key
Internal             ObjectCorrupt       the bytes are not those that were stored
ResourceExhausted    StoreFull           disk or quota full; nothing was stored
Unavailable          StoreUnavailable    the backend cannot be reached or does not answer in time
                     UnansweredCommit    it went away while it committed: what was written may be in or not
FailedPrecondition   SchemaMismatch      the data on disk was written by another version or for other settings

Their messages may reach clients: they name neither keys nor digests, paths or addresses.
"""

from pentimento.domain.errors import FailedPrecondition, Internal, NotFound, ResourceExhausted, Unavailable

# Somebody makes room, or the suite forgets what is old.
FULL_RETRY_MS = 5000


class ObjectMissing(NotFound):
    """No object lies under that key."""

    def __init__(self, key: str) -> None:
        super().__init__("OBJECT_MISSING", "the object is not in the store")
        self.key = key


class ObjectCorrupt(Internal):
    """The object's bytes are not those that its reference promises."""

    def __init__(self, key: str, detail: str) -> None:
        super().__init__("OBJECT_CORRUPT", f"the object is corrupt: {detail}")
        self.key = key


class StoreFull(ResourceExhausted):
    """The store's disk or quota has no room."""

    def __init__(self, store: str, detail: str) -> None:
        super().__init__("STORE_FULL", f"{store} is full: {detail}", retry_after_ms=FULL_RETRY_MS)


class StoreUnavailable(Unavailable):
    """The store does not answer, or not in time."""

    def __init__(self, store: str, detail: str) -> None:
        super().__init__("STORE_UNAVAILABLE", f"{store} cannot be reached: {detail}")


class UnansweredCommit(StoreUnavailable):
    """The store went away while it committed: nobody knows whether what was written is in."""


class SchemaMismatch(FailedPrecondition):
    """The store was written by another version, or for vectors of another size."""

    def __init__(self, store: str, detail: str) -> None:
        super().__init__("SCHEMA_MISMATCH", f"{store}: {detail}")
