"""Test uploads to S3 in parts: complete or absent, and without remains after a failure."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from itertools import count
from threading import main_thread
from urllib.parse import parse_qs, urlsplit

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.errors import ObjectMissing, StoreFull, StoreUnavailable
from pentimento.stores.objects import open_objects
from pentimento.stores.objects import store as interface
from pentimento.stores.objects.s3 import S3ObjectStore
from pentimento.stores.objects.store import refer_to
from tests.contract.stores.test_s3_objects import SPOKEN, serving

PART_BYTES = 5 * 2**20
LARGE = bytes(range(256)) * (2 * PART_BYTES // 256) + b"the last part is small"
_buckets = count(1)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture
def url(s3_endpoint: str) -> str:
    return f"s3://parts-{next(_buckets)}/some/prefix?endpoint={s3_endpoint}&create_bucket=true&part_mib=5"


@pytest.fixture
def store(url: str) -> S3ObjectStore:
    found = open_objects(url)
    assert isinstance(found, S3ObjectStore)
    return found


def part_count(store: S3ObjectStore, key: str) -> int:
    """Return the number of parts of the stored object, by its ETag; 0 for an object uploaded whole."""
    head = store._client.head_object(Bucket=store._bucket, Key=store._prefix + key)
    _, _, parts = head["ETag"].strip('"').partition("-")
    return int(parts or 0)


def test_a_large_object_goes_up_in_parts_and_is_the_same(store: S3ObjectStore) -> None:
    reference = store.put("large", LARGE)

    assert reference == refer_to("large", LARGE)
    assert store.get(reference) == LARGE
    assert part_count(store, "large") == 3
    assert store.check_integrity([reference]) == []


@pytest.mark.parametrize(("size", "parts"), [(PART_BYTES, 0), (PART_BYTES + 1, 2)])
def test_object_that_fits_a_part_is_uploaded_whole(store: S3ObjectStore, size: int, parts: int) -> None:
    store.put("a", bytes(size))

    assert part_count(store, "a") == parts


def test_set_aside_with_room_for_one_keeps_the_newest(store: S3ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "MAX_ASIDE_COUNT", 1)
    for key in ("a", "b"):
        promised = refer_to(key, b"right")
        store.put(key, b"wrong")

        assert store.set_aside(promised)

    kept = store._client.list_objects_v2(Bucket=store._bucket, Prefix=f"{store._prefix}quarantine/")["Contents"]
    assert [found["Key"].rpartition(".")[2] for found in kept] == ["b"]


def test_parts_replace_an_object_at_once(store: S3ObjectStore) -> None:
    store.put("a", b"first")

    assert store.get(store.put("a", LARGE)) == LARGE


KILLED = """
import os, signal, sys
from pentimento.stores.objects import open_objects
store = open_objects(sys.argv[1])
upload_part = store._client.upload_part
def killed_at(**request):
    if request["PartNumber"] == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return upload_part(**request)
store._client.upload_part = killed_at
store.put("large", bytes(11 * 2**20))
"""


@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_writer_that_is_killed_between_parts_leaves_nothing_once_it_is_swept(
    store: S3ObjectStore, url: str, part: int
) -> None:
    before = store.put("large", b"what was there before")

    killed = subprocess.run([sys.executable, "-c", KILLED, url, str(part)], check=False)

    assert killed.returncode == -signal.SIGKILL
    assert store.get(before) == b"what was there before"
    assert store.check_integrity([before]) == ["unfinished upload of some/prefix/large"]
    assert store.sweep_uploads(3600.0) == 1, "this server dates every upload to 2010"
    assert store.check_integrity([before]) == []
    assert store.get(store.put("large", LARGE)) == LARGE


def test_an_interrupted_upload_is_taken_back_at_once(store: S3ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    upload_part = store._client.upload_part

    def interrupted_at_second(**request: object) -> object:
        if request["PartNumber"] == 2:
            # Parts are uploaded on threads, and signals reach the main one.
            signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.2)
        return upload_part(**request)

    monkeypatch.setattr(store._client, "upload_part", interrupted_at_second)

    with pytest.raises(KeyboardInterrupt):
        store.put("large", LARGE)

    assert store.check_integrity() == []
    with pytest.raises(ObjectMissing):
        store.get(refer_to("large", LARGE))


def test_a_sweep_does_not_touch_uploads_of_others(store: S3ObjectStore, s3_endpoint: str) -> None:
    other = open_objects(f"s3://{store._bucket}/other?endpoint={s3_endpoint}")
    assert isinstance(other, S3ObjectStore)
    begun = store._client.create_multipart_upload(Bucket=store._bucket, Key="other/large")

    assert store.sweep_uploads(0.0) == 0

    other._abort("other/large", begun["UploadId"])


def test_open_objects_refuses_parts_that_s3_does_not_take() -> None:
    for part_mib in ("4", "5121", "-5", "5.5", ""):
        with pytest.raises(InvalidArgument, match="part_mib"):
            open_objects(f"s3://bucket?part_mib={part_mib}")


class ScriptedStore(BaseHTTPRequestHandler):
    """Answer S3's multipart calls over HTTP: `refusal` answers the second part, and aborts are recorded. One listed
    upload began when the server's clock said 10,000, another 50 seconds before the present, 20,000."""

    protocol_version = SPOKEN
    refusal: tuple[int, bytes] = (403, b"QuotaExceeded")
    aborts: tuple[str, ...] = ()
    answers_aborts = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(200, b"<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>")

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        number = parse_qs(urlsplit(self.path).query)["partNumber"][0]
        status, code = (200, b"") if number == "1" else self.refusal
        self._answer(status, b"<Error><Code>" + code + b"</Code></Error>" if code else b"")

    def do_DELETE(self) -> None:
        upload_id = parse_qs(urlsplit(self.path).query)["uploadId"][0]
        type(self).aborts = (*self.aborts, upload_id)
        self._answer(204 if self.answers_aborts else 403, b"")

    def do_GET(self) -> None:
        uploads = b"".join(
            b"<Upload><Key>k</Key><UploadId>%s</UploadId><Initiated>%s</Initiated></Upload>" % upload
            for upload in ((b"old", b"1970-01-01T02:46:40Z"), (b"young", b"1970-01-01T05:32:30Z"))
        )
        self._answer(200, b"<ListMultipartUploadsResult>" + uploads + b"</ListMultipartUploadsResult>")

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(20_000, usegmt=True)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", '"tag"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(ScriptedStore, "aborts", ())
    with serving(ScriptedStore) as endpoint:
        yield f"s3://bucket?endpoint={endpoint}&part_mib=5"


def test_a_store_that_fills_up_between_parts_is_full_and_keeps_none_of_them(scripted: str) -> None:
    with pytest.raises(StoreFull):
        open_objects(scripted).put("a", LARGE)

    assert ScriptedStore.aborts == ("one",)


def test_first_error_is_raised_if_parts_cannot_be_deleted(scripted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedStore, "refusal", (403, b"AccessDenied"))
    monkeypatch.setattr(ScriptedStore, "answers_aborts", False)

    with pytest.raises(StoreUnavailable, match="AccessDenied"):
        open_objects(scripted).put("a", LARGE)

    assert ScriptedStore.aborts == ("one",)


@pytest.mark.parametrize(("age_s", "swept"), [(20_000.0, ()), (100.0, ("old",)), (50.0, ("old", "young"))])
def test_uploads_are_as_old_as_the_store_says(scripted: str, age_s: float, swept: tuple[str, ...]) -> None:
    assert open_objects(scripted).sweep_uploads(age_s) == len(swept)

    assert ScriptedStore.aborts == swept
