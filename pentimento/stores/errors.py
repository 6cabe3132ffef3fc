"""Define the errors of the stores, under the domain's errors.

NotFound             ObjectMissing       no object under that key
Internal             ObjectCorrupt       the bytes differ from the stored ones
ResourceExhausted    StoreFull           disk or quota full; nothing was stored
Unavailable          StoreUnavailable    the backend cannot be reached or does not answer in time
                     UnansweredCommit    the backend failed during a commit, which may or may not have succeeded
FailedPrecondition   SchemaMismatch      the data on disk was written by another version or for other settings

Their messages may reach clients: they name neither keys nor digests, paths or addresses.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from pentimento.domain.errors import FailedPrecondition, Internal, NotFound, ResourceExhausted, Unavailable

# After this time space may have been freed, or the suite has deleted old data.
FULL_RETRY_MS = 5000
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class ObjectMissing(NotFound):
    """Report that no object has that key."""

    def __init__(self, key: str) -> None:
        super().__init__("OBJECT_MISSING", "the object is not in the store")
        self.key = key


class ObjectCorrupt(Internal):
    """Report that the object's bytes differ from its reference."""

    def __init__(self, key: str, detail: str) -> None:
        super().__init__("OBJECT_CORRUPT", f"the object is corrupt: {detail}")
        self.key = key


class StoreFull(ResourceExhausted):
    """Report that the store's disk or quota has no room."""

    def __init__(self, store: str, detail: str) -> None:
        super().__init__("STORE_FULL", f"{store} is full: {detail}", retry_after_ms=FULL_RETRY_MS)


class StoreUnavailable(Unavailable):
    """Report that the store does not answer, or not in time."""

    def __init__(self, store: str, detail: str) -> None:
        super().__init__("STORE_UNAVAILABLE", f"{store} cannot be reached: {detail}")


class UnansweredCommit(StoreUnavailable):
    """Report that the store failed during a commit, which may or may not have succeeded."""


class SchemaMismatch(FailedPrecondition):
    """Report that the store was written by another version, or for vectors of another size."""

    def __init__(self, store: str, detail: str) -> None:
        super().__init__("SCHEMA_MISMATCH", f"{store}: {detail}")


@contextmanager
def disk_errors(store: str) -> Iterator[None]:
    """Raise the disk's errors as those of the store."""
    try:
        yield
    except OSError as error:
        # Only the cause names the path.
        words = error.strerror or type(error).__name__
        if error.errno in _FULL:
            raise StoreFull(store, words) from error
        raise StoreUnavailable(store, words) from error
