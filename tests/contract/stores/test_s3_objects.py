"""What only S3 can do wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.errors import StoreFull, StoreUnavailable
from pentimento.stores.objects import open_objects, s3
from pentimento.stores.objects.store import refer_to

# Whoever asks whether to send the body waits a second for an answer that only this version gives.
SPOKEN = "HTTP/1.1"
FULL = b"<?xml version='1.0'?><Error><Code>QuotaExceeded</Code><Message>full</Message></Error>"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


class FullStore(BaseHTTPRequestHandler):
    """Answers every write as a store over its quota does."""

    protocol_version = SPOKEN

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(403)
        self.send_header("Content-Length", str(len(FULL)))
        self.end_headers()
        self.wfile.write(FULL)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing to stderr."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_store_that_is_away_is_unavailable() -> None:
    store = open_objects("s3://bucket?endpoint=http://127.0.0.1:1")

    with pytest.raises(StoreUnavailable):
        store.put("a", b"bytes")


def test_a_store_that_fails_is_asked_three_times_and_then_unavailable() -> None:
    asked: list[str] = []

    class FailingStore(FullStore):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving(FailingStore) as endpoint, pytest.raises(StoreUnavailable):
        open_objects(f"s3://bucket?endpoint={endpoint}").put("a", b"bytes")

    assert asked == ["/bucket/a"] * 3


class Redirected(FullStore):
    """As what leads plain HTTP to another port."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(301)
        self.send_header("Location", "https://elsewhere.invalid/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_POST = do_PUT


class Greeting(FullStore):
    """Answers everything by a page that ends with the connection, as a proxy before a store that is away."""

    page, end = b"<html><body>Back soon.</body></html>", ("Connection", "close")

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(200)
        self.send_header(*self.end)
        self.end_headers()
        self.wfile.write(self.page)

    do_GET = do_POST = do_PUT


class Page(Greeting):
    """The same, of a length that is told."""

    page, end = b"page", ("Content-Length", "4")


@pytest.mark.parametrize("handler", [Redirected, Greeting, Page])
def test_what_answers_as_no_store_does_is_unavailable(handler: type[BaseHTTPRequestHandler]) -> None:
    large = bytes((5 << 20) + 1)

    with serving(handler) as endpoint:
        store = open_objects(f"s3://bucket?endpoint={endpoint}&part_mib=5")

        with pytest.raises(StoreUnavailable):
            store.put("a", large)
        with pytest.raises(StoreUnavailable):
            store.put("a", b"small")
        for reference in (refer_to("a", large), refer_to("a", b"page")):
            with pytest.raises(StoreUnavailable):
                store.get(reference)
        with pytest.raises(StoreUnavailable):
            store.set_aside(refer_to("a", large))


def test_a_bucket_that_is_made_elsewhere_is_unavailable() -> None:
    with serving(Redirected) as endpoint, pytest.raises(StoreUnavailable):
        open_objects(f"s3://bucket?endpoint={endpoint}&create_bucket=true")


def test_what_a_store_says_is_not_there_is_deleted() -> None:
    """Amazon's answers as if it had been; others say so."""

    class StrictStore(FullStore):
        def do_DELETE(self) -> None:
            answer = b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
            self.send_response(404)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with serving(StrictStore) as endpoint:
        open_objects(f"s3://bucket?endpoint={endpoint}").delete("a")


def test_a_store_over_its_quota_is_full() -> None:
    with serving(FullStore) as endpoint:
        store = open_objects(f"s3://bucket?endpoint={endpoint}")

        with pytest.raises(StoreFull):
            store.put("a", b"bytes")


def test_a_missing_bucket_is_unavailable(s3_endpoint: str) -> None:
    store = open_objects(f"s3://no-such-bucket?endpoint={s3_endpoint}")

    with pytest.raises(StoreUnavailable):
        store.put("a", b"bytes")


def test_what_others_left_below_a_prefix_is_no_object(s3_endpoint: str) -> None:
    """As the folder that a console makes."""
    store = open_objects(f"s3://foreign-bucket/some?endpoint={s3_endpoint}&create_bucket=true")
    assert isinstance(store, s3.S3ObjectStore)
    for name in ("some/cache/", "some/cache/notes.txt"):
        store._client.put_object(Bucket="foreign-bucket", Key=name, Body=b"")
    store.put("cache/a", b"bytes")

    assert list(store.keys("cache/")) == ["cache/a"]


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1"])
def test_a_bucket_is_made_once_in_any_region(s3_endpoint: str, region: str) -> None:
    url = f"s3://made-in-{region}?endpoint={s3_endpoint}&region={region}&create_bucket=true"

    for _ in range(2):
        store = open_objects(url)

    assert store.get(store.put("a", b"bytes")) == b"bytes"


def test_prefixes_do_not_see_each_other(s3_endpoint: str) -> None:
    one = open_objects(f"s3://shared-bucket/one?endpoint={s3_endpoint}&create_bucket=true")
    other = open_objects(f"s3://shared-bucket/other?endpoint={s3_endpoint}&create_bucket=true")

    one.put("a", b"bytes")

    assert list(other.keys()) == []


def test_listing_goes_on_after_the_first_page(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_PAGE_COUNT", 10)
    store = open_objects(f"s3://paged-bucket?endpoint={s3_endpoint}&create_bucket=true")
    for number in range(25):
        store.put(f"k/{number}", b"")

    assert len(set(store.keys("k/"))) == 25


def test_unknown_options_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="acl"):
        open_objects("s3://bucket?acl=public")
