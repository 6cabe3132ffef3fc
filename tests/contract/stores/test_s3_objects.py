"""Test errors that only S3 has."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.errors import StoreFull, StoreUnavailable
from pentimento.stores.objects import open_objects, s3
from pentimento.stores.objects.store import refer_to
from tests.support.refusals import raises

# A client with `Expect: 100-continue` waits a second for an answer that only this version gives.
SPOKEN = "HTTP/1.1"
FULL = b"<?xml version='1.0'?><Error><Code>QuotaExceeded</Code><Message>full</Message></Error>"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


def answering(
    status: int, body: bytes = b"", is_sized: bool = True, asked: list[str] | None = None
) -> type[BaseHTTPRequestHandler]:
    """Return a handler that gives every call the same answer and records its path. Without a size, the answer ends with
    its connection."""

    class Answering(BaseHTTPRequestHandler):
        protocol_version = SPOKEN

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            if asked is not None:
                asked.append(self.path)
            self.send_response(status)
            if status == 301:
                self.send_header("Location", "https://elsewhere.invalid/")
            self.send_header(*(("Content-Length", str(len(body))) if is_sized else ("Connection", "close")))
            self.end_headers()
            self.wfile.write(body if self.command != "HEAD" else b"")

        do_GET = do_HEAD = do_POST = do_DELETE = do_PUT

        def log_message(self, format: str, *args: object) -> None:
            """Write no log."""

    return Answering


# A redirect to another port, a proxy's page in place of the store, and the same page with a known length.
REDIRECTED = answering(301)
GREETING = answering(200, b"<html><body>Back soon.</body></html>", is_sized=False)
PAGE = answering(200, b"page")
NOT_THERE = answering(404, b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>none</Message></Error>")


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


def test_put_to_failing_store_is_tried_three_times() -> None:
    asked: list[str] = []

    with serving(answering(503, asked=asked)) as endpoint, pytest.raises(StoreUnavailable):
        open_objects(f"s3://bucket?endpoint={endpoint}").put("a", b"bytes")

    assert asked == ["/bucket/a"] * 3


@pytest.mark.parametrize("handler", [REDIRECTED, GREETING, PAGE], ids=["redirected", "greeting", "page"])
def test_calls_to_other_servers_are_unavailable(handler: type[BaseHTTPRequestHandler]) -> None:
    large = bytes((5 << 20) + 1)

    with serving(handler) as endpoint:
        store = open_objects(f"s3://bucket?endpoint={endpoint}&part_mib=5")
        calls = (
            lambda: store.put("a", large),
            lambda: store.put("a", b"small"),
            lambda: store.get(refer_to("a", large)),
            lambda: store.get(refer_to("a", b"page")),
            lambda: store.set_aside(refer_to("a", large)),
        )

        assert all(raises(StoreUnavailable, call) for call in calls)


def test_create_bucket_redirected_is_unavailable() -> None:
    with serving(REDIRECTED) as endpoint, pytest.raises(StoreUnavailable):
        open_objects(f"s3://bucket?endpoint={endpoint}&create_bucket=true")


def test_delete_of_object_that_store_does_not_have_succeeds() -> None:
    with serving(NOT_THERE) as endpoint:
        open_objects(f"s3://bucket?endpoint={endpoint}").delete("a")


def test_put_to_store_over_its_quota_is_store_full() -> None:
    with serving(answering(403, FULL)) as endpoint, pytest.raises(StoreFull):
        open_objects(f"s3://bucket?endpoint={endpoint}").put("a", b"bytes")


def test_put_to_missing_store_or_bucket_is_unavailable(s3_endpoint: str) -> None:
    for url in ("s3://bucket?endpoint=http://127.0.0.1:1", f"s3://no-such-bucket?endpoint={s3_endpoint}"):
        with pytest.raises(StoreUnavailable):
            open_objects(url).put("a", b"bytes")


def test_keys_leave_out_objects_of_others(s3_endpoint: str) -> None:
    """A console makes such a folder object."""
    store = open_objects(f"s3://foreign-bucket/some?endpoint={s3_endpoint}&create_bucket=true")
    assert isinstance(store, s3.S3ObjectStore)
    for name in ("some/cache/", "some/cache/notes.txt"):
        store._client.put_object(Bucket="foreign-bucket", Key=name, Body=b"")
    store.put("cache/a", b"bytes")

    assert list(store.keys("cache/")) == ["cache/a"]


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1"])
def test_create_bucket_in_any_region_once(s3_endpoint: str, region: str) -> None:
    url = f"s3://made-in-{region}?endpoint={s3_endpoint}&region={region}&create_bucket=true"

    for _ in range(2):
        store = open_objects(url)

    assert store.get(store.put("a", b"bytes")) == b"bytes"


def test_keys_of_prefixes_are_apart(s3_endpoint: str) -> None:
    one = open_objects(f"s3://shared-bucket/one?endpoint={s3_endpoint}&create_bucket=true")
    other = open_objects(f"s3://shared-bucket/other?endpoint={s3_endpoint}&create_bucket=true")

    one.put("a", b"bytes")

    assert list(other.keys()) == []


def test_keys_continue_after_first_page(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_PAGE_COUNT", 10)
    store = open_objects(f"s3://paged-bucket?endpoint={s3_endpoint}&create_bucket=true")
    for number in range(25):
        store.put(f"k/{number}", b"")

    assert len(set(store.keys("k/"))) == 25


def test_open_objects_refuses_unknown_option() -> None:
    with pytest.raises(InvalidArgument, match="acl"):
        open_objects("s3://bucket?acl=public")
