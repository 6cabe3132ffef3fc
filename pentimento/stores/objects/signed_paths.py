"""Sign paths of objects that are files: any client may read by such a path until it expires; only the key makes one.

    /v1/files/results/0f3a…?expires=1767225600&type=image%2Fpng&size=4711&digest=<hex>&signature=<base64url>

The signature is HMAC-SHA256 (RFC 2104) over the whole path. A rejection never names the fault.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

from pentimento.domain.errors import FailedPrecondition, PermissionDenied
from pentimento.domain.generation import ObjectReference
from pentimento.stores.objects.store import KEY_PATTERN, MAX_KEY_LENGTH

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
