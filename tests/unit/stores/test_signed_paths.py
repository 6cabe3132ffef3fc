"""Signed paths give read access to a file until they expire, and cannot be forged."""

from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pentimento.domain.errors import PermissionDenied
from pentimento.domain.generation import ObjectReference
from pentimento.stores.objects.store import FILES_PATH, PathSigner, SignedFile

NOW = 1_800_000_000
FILE = SignedFile(ObjectReference("results/0a1b", "sha256:" + "ab" * 32, 4711), "image/png", NOW + 60)
SIGNER = PathSigner(b"k" * 32)


def parts(path: str) -> tuple[str, str]:
    split = urlsplit(path)
    return split.path.removeprefix(FILES_PATH), split.query


def reason(signer: PathSigner, path: str, now: float = NOW) -> tuple[str, str]:
    with pytest.raises(PermissionDenied) as caught:
        signer.verify(*parts(path), now)
    return caught.value.reason, caught.value.message


def test_verify_returns_signed_file_until_it_expires() -> None:
    path = SIGNER.sign(FILE)

    assert path.startswith("/v1/files/results/0a1b?expires=1800000060&type=image%2Fpng&size=4711&digest=abab")
    assert SIGNER.verify(*parts(path), NOW) == SIGNER.verify(*parts(path), NOW + 59.9) == FILE
    for now in (NOW + 60, NOW + 1e9):
        reason(SIGNER, path, now)


OTHERS = (
    replace(FILE, expires_at=FILE.expires_at + 1),
    replace(FILE, media_type="image/webp"),
    replace(FILE, reference=replace(FILE.reference, key="results/0a1c")),
    replace(FILE, reference=replace(FILE.reference, size_bytes=4712)),
    replace(FILE, reference=replace(FILE.reference, digest="sha256:" + "ac" * 32)),
)


def test_verify_refuses_signature_of_other_path() -> None:
    signature = SIGNER.sign(FILE).rpartition("=")[2]
    for other in OTHERS:
        reason(SIGNER, f"{SIGNER.sign(other).rpartition('=')[0]}={signature}")


def test_verify_rejects_every_wrong_path_with_same_reason() -> None:
    path = SIGNER.sign(FILE)
    expired = reason(SIGNER, path, NOW + 60)
    others = {
        reason(PathSigner(b"x" * 32), path),
        reason(SIGNER, path[:-1]),
        reason(SIGNER, path + "&more=1"),
        reason(SIGNER, path.replace("?", "?expires=9999999999&")),
        reason(SIGNER, path.replace("results/0a1b", "results/../0a1b")),
        reason(SIGNER, path.partition("?")[0]),
        reason(SIGNER, path.replace("size=4711", "size=04711")),
        reason(SIGNER, path.replace("size=4711", "size=" + "9" * 50)),
        reason(SIGNER, path.replace("signature=", "signature=%FF")),
        reason(SIGNER, path + "é"),
    }

    assert others == {expired}
    assert expired[0] == "URL_REFUSED"


@given(place=st.integers(min_value=0), put=st.characters(codec="utf-8"))
def test_verify_of_changed_path_is_refused(place: int, put: str) -> None:
    key, query = parts(SIGNER.sign(FILE))
    place %= len(query)
    changed = query[:place] + put + query[place + 1 :]
    assume(changed != query)

    try:
        found = SIGNER.verify(key, changed, NOW)
    except PermissionDenied:
        return
    # Only another spelling of the very same path, such as a digit of an escape in lower case, is the same path.
    assert found == FILE


def test_verify_takes_listed_old_keys() -> None:
    path = SIGNER.sign(FILE)

    assert PathSigner(b"n" * 32, b"k" * 32).verify(*parts(path), NOW) == FILE
    reason(PathSigner(b"n" * 32), path)
    assert PathSigner(b"n" * 32, b"k" * 32).sign(FILE) == PathSigner(b"n" * 32).sign(FILE)


def test_path_signer_refuses_short_key() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        PathSigner(b"k" * 31)
