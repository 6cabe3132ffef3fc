"""The interface of object stores, and what all of them agree on: keys and digests."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.domain.generation import ObjectReference
from pentimento.domain.jobs import ResultUrlServer
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing

# Segments of letters, digits, "_" and "-": neither a path nor a query can be smuggled into a key. No dot at all.
KEY_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}(/[A-Za-z0-9][A-Za-z0-9_-]{0,99}){0,3}", re.ASCII)
MAX_KEY_LENGTH = 200
# What is kept of corrupt objects.
MAX_ASIDE_COUNT = 64
MAX_ASIDE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class StoreUsage:
    """How many objects lie in a store, or in a part of it, and their bytes."""

    object_count: int
    size_bytes: int


class ObjectStore(Protocol):
    """Bytes by key, whole or not at all. Thread-safe. All methods raise StoreUnavailable when the backend is away.

    `put` and `delete` change state. Writing a key again replaces its object atomically.
    """

    @property
    def backend(self) -> str:
        """The kind of store: `filesystem` or `s3`."""

    @property
    def address_server(self) -> ResultUrlServer:
        """Who serves the addresses that `presign` gives; NONE where it has nothing to sign with."""

    def put(self, key: str, data: bytes, *, durable: bool = True) -> ObjectReference:
        """Store the object and return its reference. It is readable on return, and safe from a power cut unless
        `durable` is given up (caches can do without).

        Raises InvalidArgument for a bad key, StoreFull with nothing left behind.
        """

    def get(self, reference: ObjectReference) -> bytes:
        """Return the bytes, checked against size and digest. Raises ObjectMissing, ObjectCorrupt."""

    def presign(self, reference: ObjectReference, media_type: str, expires_at: int) -> str:
        """Return an address under which anybody may read the object, as that media type, until `expires_at` (seconds
        since 1970): whole where the store serves it itself, a path of the HTTP edge where that does. Says nothing about
        whether the object is there. Raises FailedPrecondition URLS_OFF where there is nothing to sign with."""

    def set_aside(self, reference: ObjectReference) -> bool:
        """Take what lies under the key out of service if it is not what the reference promises, and return whether it
        was not. It is kept for whoever looks into it, beside the last few such. For those whose reference is sound."""

    def delete(self, key: str) -> None:
        """Delete the object; succeeds also when there is none."""

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Yield every key that starts with `prefix`, in no order. Objects put or deleted meanwhile may or may not be
        seen, what others left there is not."""

    def usage(self, prefix: str = "") -> StoreUsage:
        """Return what lies under keys that start with `prefix`. Goes through all of them."""

    def sweep_uploads(self, unfinished_for_s: float) -> int:
        """Delete what uploads left behind that never came to their end, and return their number. Where the store cannot
        tell whether a writer still lives, they go when they are `unfinished_for_s` seconds old."""

    def free_bytes(self) -> int | None:
        """Return the room left for objects; None where the backend does not say."""

    def check_integrity(self, references: Iterable[ObjectReference] = ()) -> list[str]:
        """Return a sentence for each thing that is wrong: foreign or partial files, and whichever of `references` is
        missing or corrupt."""


def is_key(text: str) -> bool:
    """Return whether an object may lie under that name."""
    return len(text) <= MAX_KEY_LENGTH and KEY_PATTERN.fullmatch(text) is not None


def check_key(key: str) -> str:
    """Return the key, if it is one. Raises InvalidArgument."""
    if not is_key(key):
        limit = f"at most {MAX_KEY_LENGTH} characters, up to 4 segments of letters, digits, '_', '-'"
        raise InvalidArgument.of("key", f"must be {limit}, got {key[:80]!r}")
    return key


def digest_of(data: bytes) -> str:
    """Return the digest of the data, "sha256:" and hexadecimal digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def refer_to(key: str, data: bytes) -> ObjectReference:
    """Return the reference of that data under that key."""
    return ObjectReference(key, digest_of(data), len(data))


def verify(reference: ObjectReference, data: bytes) -> bytes:
    """Return `data`, if it is what the reference promises. Raises ObjectCorrupt."""
    if len(data) != reference.size_bytes:
        raise ObjectCorrupt(reference.key, f"expected {reference.size_bytes} bytes, found {len(data)}")
    if digest_of(data) != reference.digest:
        raise ObjectCorrupt(reference.key, "its bytes have another digest")
    return data


def is_corrupt(store: ObjectStore, reference: ObjectReference) -> bool:
    """Return whether something else than the object lies under its key."""
    try:
        store.get(reference)
    except ObjectCorrupt:
        return True
    except ObjectMissing:
        return False
    return False


def beyond_bounds(sizes: Mapping[str, int]) -> list[str]:
    """Return the names that go of what was set aside: all but the newest that fit the bounds. Names sort by age."""
    left_bytes, left_count, gone = MAX_ASIDE_BYTES, MAX_ASIDE_COUNT, []
    for name in sorted(sizes, reverse=True):
        left_bytes, left_count = left_bytes - sizes[name], left_count - 1
        if left_bytes < 0 or left_count < 0:
            gone.append(name)
    return gone


def aside_name(key: str, wall_ns: int) -> str:
    """Return a name for an object that is set aside at that time."""
    return f"{wall_ns:020d}.{key.replace('/', '.')}"


def broken_references(store: ObjectStore, references: Iterable[ObjectReference]) -> Iterator[str]:
    """Yield a sentence for each reference that cannot be read back."""
    for reference in references:
        try:
            store.get(reference)
        except PentimentoError as error:
            yield f"{reference.key!r}: {error.message}"
