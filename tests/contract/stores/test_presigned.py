"""Test URLs that grant reading an object until they expire, on both stores; S3's over HTTP."""

import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.generation import ObjectReference
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.objects.store import FILES_PATH, PathSigner

SIGNER = PathSigner(b"k" * 32)


def test_presign_s3_serves_object_as_its_media_type(s3_endpoint: str) -> None:
    store = open_objects(f"s3://presigned/some/prefix?endpoint={s3_endpoint}&create_bucket=true")
    reference = store.put("results/0a1b", b"a picture")

    url = store.presign(reference, "image/webp", int(time.time()) + 3600)

    # The URL needs no further credentials.
    with urlopen(url, timeout=60) as answer:
        assert answer.read() == b"a picture"
        assert answer.headers["Content-Type"] == "image/webp"
    query = parse_qs(urlsplit(url).query)
    assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
    assert 3595 <= int(query["X-Amz-Expires"][0]) <= 3600


def test_presign_s3_ends_within_seven_days(s3_endpoint: str) -> None:
    store = open_objects(f"s3://presigned-long/p?endpoint={s3_endpoint}&create_bucket=true")

    url = store.presign(store.put("results/a", b"x"), "image/png", int(time.time()) + 30 * 24 * 3600)

    assert parse_qs(urlsplit(url).query)["X-Amz-Expires"] == ["604800"]


def test_presign_s3_missing_object_is_not_served(s3_endpoint: str) -> None:
    """Without the right to list a bucket, S3 hides whether an object exists: 403 as well as 404."""
    store = open_objects(f"s3://presigned-gone/p?endpoint={s3_endpoint}&create_bucket=true")
    url = store.presign(ObjectReference("results/never", "sha256:", 1), "image/png", int(time.time()) + 60)

    with pytest.raises(HTTPError) as caught:
        urlopen(url, timeout=60)
    with caught.value as refusal:  # it holds the connection
        assert refusal.code in (403, 404)


def test_presign_file_path_names_same_object(tmp_path: Path) -> None:
    store = open_objects(f"file://{tmp_path}/objects", lambda: SIGNER)
    reference = store.put("results/0a1b", b"a picture")

    path = store.presign(reference, "image/png", 2_000_000_000)

    key, _, query = path.removeprefix(FILES_PATH).partition("?")
    found = SIGNER.verify(key, query, 1_999_999_999)
    assert (found.reference, found.media_type) == (reference, "image/png")
    assert store.get(found.reference) == b"a picture"


def test_presign_s3_with_addresses_of_edge(s3_endpoint: str) -> None:
    url = f"s3://behind-an-edge/p?endpoint={s3_endpoint}&create_bucket=true"
    reference = open_objects(url).put("results/0a1b", b"a picture")

    path = open_objects(f"{url}&addresses=edge", lambda: SIGNER).presign(reference, "image/png", 2_000_000_000)

    key, _, query = path.removeprefix(FILES_PATH).partition("?")
    found = SIGNER.verify(key, query, 1_999_999_999)
    assert open_objects(url, read_only=True).get(found.reference) == b"a picture"
    with pytest.raises(FailedPrecondition, match="no key"):
        open_objects(f"{url}&addresses=edge").presign(reference, "image/png", 2_000_000_000)
    with pytest.raises(InvalidArgument, match="store or edge"):
        open_objects(f"{url}&addresses=other", lambda: SIGNER)


def test_address_server_of_each_store(tmp_path: Path, s3_endpoint: str) -> None:
    s3, files = f"s3://who-serves/p?endpoint={s3_endpoint}", f"file://{tmp_path}/objects"
    urls = (s3, f"{s3}&addresses=edge", files)

    assert [open_objects(url, lambda: SIGNER).address_server.value for url in urls] == ["store", "edge", "edge"]
    assert [open_objects(url).address_server.value for url in urls] == ["store", "none", "none"]


def test_open_objects_read_only_makes_no_directory(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/objects"
    reader = open_objects(url, read_only=True)
    assert not (tmp_path / "objects").exists()

    reference = open_objects(url).put("results/0a1b", b"a picture")

    assert reader.get(reference) == b"a picture"


def test_presign_file_without_key_is_refused(tmp_path: Path) -> None:
    store = open_objects(f"file://{tmp_path}/objects")
    reference = store.put("results/0a1b", b"a picture")

    with pytest.raises(FailedPrecondition) as caught:
        store.presign(reference, "image/png", 2_000_000_000)
    assert caught.value.reason == "URLS_OFF"


def test_presign_of_bad_key_is_refused(objects: ObjectStore) -> None:
    for key in ("../etc/passwd", "a b", "", "results/a?b"):
        with pytest.raises(InvalidArgument):
            objects.presign(ObjectReference(key, "sha256:" + "ab" * 32, 1), "image/png", 2_000_000_000)
