"""Define the interface of object stores, their common keys and digests, and the signed paths of objects that are files:
any client may read by such a path until it expires; only the key makes one.

    /v1/files/results/0f3a…?expires=1767225600&type=image%2Fpng&size=4711&digest=<hex>&signature=<base64url>

The signature is HMAC-SHA256 (RFC 2104) over the whole path. A rejection never names the fault.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl, quote, urlencode

from pentimento.domain.errors import FailedPrecondition, InvalidArgument, PentimentoError, PermissionDenied
from pentimento.domain.generation import ObjectReference
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing

if TYPE_CHECKING:
    from pentimento.domain.jobs import ResultUrlServer

# Segments of letters, digits, "_" and "-": neither a path nor a query can be smuggled into a key. No dot at all.
KEY_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}(/[A-Za-z0-9][A-Za-z0-9_-]{0,99}){0,3}", re.ASCII)
MAX_KEY_LENGTH = 200
# Limits of the quarantine of corrupt objects.
MAX_ASIDE_COUNT = 64
MAX_ASIDE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class StoreUsage:
    """Count the objects in a store, or in a part of it, and their bytes."""

    object_count: int
    size_bytes: int


class Readable(Protocol):
    """Describe what `put_file` reads: an open file, or bytes that still arrive."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


# Receives the reference of an object before it becomes readable, and raises an error to store nothing.
CheckReference = Callable[[ObjectReference], None]


class DigestedFile:
    """Read a file to its end, and digest it; `check` receives the reference under `key` at the end."""

    def __init__(self, key: str, file: Readable, check: CheckReference | None) -> None:
        self._file = file
        self._sum = hashlib.sha256()
        self._reference = ObjectReference(key, "", 0)
        self._check = check
        self._has_ended = False

    def read(self, size: int, /) -> bytes:
        """Return `size` bytes; less only at the end."""
        pieces = []
        while size and (piece := self._file.read(size)):
            self._sum.update(piece)
            pieces.append(piece)
            size -= len(piece)
        data = b"".join(pieces)
        found = self._reference
        self._reference = ObjectReference(found.key, "", found.size_bytes + len(data))
        if size and not self._has_ended:
            self._has_ended = True
            if self._check is not None:
                self._check(self.reference)
        return data

    @property
    def reference(self) -> ObjectReference:
        """Return the reference of all bytes that were read."""
        return replace(self._reference, digest=f"sha256:{self._sum.hexdigest()}")


class ObjectStore(Protocol):
    """Store bytes by key, whole or not at all. Thread-safe. All methods raise StoreUnavailable when the backend is
    away.

    `put` and `delete` change state. Writing a key again replaces its object atomically.
    """

    @property
    def backend(self) -> str:
        """Return the kind of store: `filesystem` or `s3`."""

    @property
    def address_server(self) -> "ResultUrlServer":
        """Return the server of the addresses that `presign` returns; NONE without a signer."""

    def put(self, key: str, data: bytes, *, durable: bool = True) -> ObjectReference:
        """Store the object and return its reference. It is readable on return, and survives a power cut unless
        `durable` is False (caches can do without).

        Raises InvalidArgument for a bad key, StoreFull with nothing left behind.
        """

    def get(self, reference: ObjectReference) -> bytes:
        """Return the bytes, checked against size and digest. Raises ObjectMissing, ObjectCorrupt."""

    def get_unverified(self, key: str) -> bytes:
        """Return the bytes under a key, for a copy of the store: no digest is checked. Raises ObjectMissing."""

    def put_file(self, key: str, file: Readable, check: CheckReference | None = None) -> ObjectReference:
        """Store the bytes that `file` still has, in pieces, and return their reference; durable as `put`. If `file`
        or `check` raises an error, nothing is stored."""

    def read_into(self, reference: ObjectReference, offset: int, buffer: bytearray | memoryview) -> None:
        """Fill the buffer with the object's bytes from `offset` on. Only the object's size is checked: the caller
        verifies its bytes. Calls from several threads run in parallel. Raises ObjectMissing, ObjectCorrupt."""

    def presign(self, reference: ObjectReference, media_type: str, expires_at: int) -> str:
        """Return an address under which any client may read the object, as that media type, until `expires_at` (seconds
        since 1970): a full address if the store serves it itself, a path if the HTTP edge does. Does not check that the
        object exists. Raises FailedPrecondition URLS_OFF without a signer."""

    def set_aside(self, reference: ObjectReference) -> bool:
        """Move the object under the key to the quarantine if it differs from the reference, and return whether it did.
        The last few such objects are stored for inspection. Callers must have a sound reference."""

    def delete(self, key: str) -> None:
        """Delete the object; succeeds also when it is missing."""

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Yield every key that starts with `prefix`, in no order. Objects put or deleted during the listing may or may
        not be seen; foreign files are not."""

    def usage(self, prefix: str = "") -> StoreUsage:
        """Return the count and size of the objects under `prefix`. Lists every one."""

    def sweep_uploads(self, unfinished_for_s: float) -> int:
        """Delete the remains of unfinished uploads, and return their number. If the store cannot tell whether a writer
        still lives, uploads are deleted once they are `unfinished_for_s` seconds old."""

    def free_bytes(self) -> int | None:
        """Return the free bytes for objects; None if the backend does not report them."""

    def check_integrity(self, references: Iterable[ObjectReference] = ()) -> list[str]:
        """Return a sentence for each fault: foreign or partial files, and each missing or corrupt object of
        `references`."""


def is_key(text: str) -> bool:
    """Return whether the text is a valid key."""
    return len(text) <= MAX_KEY_LENGTH and KEY_PATTERN.fullmatch(text) is not None


def check_key(key: str) -> str:
    """Return the key, if it is valid. Raises InvalidArgument."""
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
    """Return `data`, if it matches the reference. Raises ObjectCorrupt."""
    check_size(reference, len(data))
    if digest_of(data) != reference.digest:
        raise ObjectCorrupt(reference.key, "its bytes have another digest")
    return data


def check_range(reference: ObjectReference, offset: int, size_bytes: int) -> None:
    """Raise ValueError for a range outside the object."""
    if offset < 0 or offset + size_bytes > reference.size_bytes:
        raise ValueError(f"bytes {offset} to {offset + size_bytes} of an object of {reference.size_bytes}")


def check_size(reference: ObjectReference, found_bytes: int) -> None:
    """Raise ObjectCorrupt for an object of another size."""
    if found_bytes != reference.size_bytes:
        raise ObjectCorrupt(reference.key, f"expected {reference.size_bytes} bytes, found {found_bytes}")


def is_corrupt(store: ObjectStore, reference: ObjectReference) -> bool:
    """Return whether the bytes under the key differ from the reference."""
    try:
        store.get(reference)
    except ObjectCorrupt:
        return True
    except ObjectMissing:
        return False
    return False


def beyond_bounds(sizes: Mapping[str, int]) -> list[str]:
    """Return the names of quarantined objects to delete: all except the newest that fit the bounds. Names sort by
    age."""
    left_bytes, left_count, gone = MAX_ASIDE_BYTES, MAX_ASIDE_COUNT, []
    for name in sorted(sizes, reverse=True):
        left_bytes, left_count = left_bytes - sizes[name], left_count - 1
        if left_bytes < 0 or left_count < 0:
            gone.append(name)
    return gone


def aside_name(key: str, wall_ns: int) -> str:
    """Return the quarantine name of an object, with the time."""
    return f"{wall_ns:020d}.{key.replace('/', '.')}"


def broken_references(store: ObjectStore, references: Iterable[ObjectReference]) -> Iterator[str]:
    """Yield a sentence for each reference that cannot be read back."""
    for reference in references:
        try:
            store.get(reference)
        except PentimentoError as error:
            yield f"{reference.key!r}: {error.message}"


FILES_PATH = "/v1/files/"
MIN_KEY_BYTES = 32
_PURPOSE = b"pentimento file 1"
# In their order in a path; a path with any other field is rejected.
_NAMES = ("expires", "type", "size", "digest", "signature")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,14}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MEDIA_TYPE = re.compile(r"image/[a-z]{2,10}", re.ASCII)
_MAX_QUERY_CHARS = 400


@dataclass(frozen=True)
class SignedFile:
    """Hold an object that the caller may read, as an image of that media type, until `expires_at` (seconds since
    1970)."""

    reference: ObjectReference
    media_type: str
    expires_at: int


class PathSigner:
    """Make signed paths and verify them. `keys`: secret, at least 32 bytes each; the first one signs, the others are
    still accepted."""

    def __init__(self, *keys: bytes) -> None:
        if not keys or min(map(len, keys)) < MIN_KEY_BYTES:
            raise ValueError(f"a key that paths are signed with must have at least {MIN_KEY_BYTES} bytes")
        self._keys = keys

    def sign(self, file: SignedFile) -> str:
        """Return path and query under which the file may be read."""
        fields = _fields(file)
        signature = _signature(self._keys[0], file.reference.key, fields)
        query = urlencode([*fields.items(), ("signature", signature)])
        return f"{FILES_PATH}{quote(file.reference.key)}?{query}"

    def verify(self, key: str, query: str, now: float) -> SignedFile:
        """Return the file that a path names: `key` after `/v1/files/`, decoded once, and the query as received. `now`
        in seconds since 1970. Raises PermissionDenied URL_REFUSED for any fault."""
        found = _parsed(key, query)
        if found is None:
            raise _refused()
        file, signature = found
        # Compare in constant time, and by every key, so that the duration leaks nothing.
        expected = [_signature(secret, key, _fields(file)).encode() for secret in self._keys]
        matches = [hmac.compare_digest(one, signature.encode()) for one in expected]
        if not any(matches) or now >= file.expires_at:
            raise _refused()
        return file


# Returns the current signer: keys change while a process runs.
CurrentSigner = Callable[[], PathSigner]


def presigned_path(signer: CurrentSigner | None, reference: ObjectReference, media_type: str, expires_at: int) -> str:
    """Return the signed path of an object. Raises FailedPrecondition URLS_OFF without a signer."""
    if signer is None:
        raise FailedPrecondition("URLS_OFF", "this deployment has no addresses of images: it has no key for them")
    return signer().sign(SignedFile(reference, media_type, expires_at))


def _signature(secret: bytes, key: str, fields: dict[str, str]) -> str:
    # No part holds a line break, so that two different paths never read the same.
    text = "\n".join([key, *fields.values()]).encode()
    digest = hmac.digest(secret, _PURPOSE + b"\n" + text, hashlib.sha256)
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _fields(file: SignedFile) -> dict[str, str]:
    reference = file.reference
    values = (
        str(file.expires_at),
        file.media_type,
        str(reference.size_bytes),
        reference.digest.removeprefix("sha256:"),
    )
    return dict(zip(_NAMES[:-1], values, strict=True))


def _parsed(key: str, query: str) -> tuple[SignedFile, str] | None:
    """Return the file and the signature of a path, or None unless it is written as `sign` writes it."""
    if len(key) > MAX_KEY_LENGTH or not KEY_PATTERN.fullmatch(key) or len(query) > _MAX_QUERY_CHARS:
        return None
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        return None
    if tuple(name for name, _ in pairs) != _NAMES:
        return None
    expires, media_type, size, digest, signature = (value for _, value in pairs)
    well_formed = (
        _NUMBER.fullmatch(expires)
        and _MEDIA_TYPE.fullmatch(media_type)
        and _NUMBER.fullmatch(size)
        and _DIGEST.fullmatch(digest)
        and signature.isascii()
    )
    if not well_formed:
        return None
    reference = ObjectReference(key, f"sha256:{digest}", int(size))
    return SignedFile(reference, media_type, int(expires)), signature


def _refused() -> PermissionDenied:
    return PermissionDenied("URL_REFUSED", "this address is not, or no longer, one to read by")
