"""Begin traces for HTTP requests, continue headers of clients, and name the viewer in the console."""

from typing import Any

import pytest

from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from services.edge.app import asks_for_work, carried
from services.edge.settings import EdgeSettings, HttpSettings

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def scope(method: str = "POST", path: str = "/v1/jobs", *headers: tuple[str, str]) -> dict[str, Any]:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return {"method": method, "path": path, "headers": raw}


@pytest.mark.parametrize(
    ("method", "path", "begins"),
    [
        ("POST", "/v1/images/generations", True),
        ("POST", "/v1/jobs", True),
        ("GET", "/v1/jobs/r-1", False),
        ("POST", "/console/data/generate", False),
        ("GET", "/health", False),
    ],
)
def test_calls_for_images_and_jobs_begin_a_trace(method: str, path: str, begins: bool) -> None:
    assert asks_for_work(scope(method, path)) is begins


def test_headers_of_a_clients_trace_are_continued() -> None:
    given = (("traceparent", PARENT), ("tracestate", "vendor=1"), ("authorization", "Bearer x"))
    assert carried(scope("POST", "/v1/jobs", *given)) == {"traceparent": PARENT, "tracestate": "vendor=1"}


def test_header_that_is_there_twice_is_not_continued() -> None:
    assert carried(scope("POST", "/v1/jobs", ("traceparent", PARENT), ("traceparent", PARENT))) == {}


@pytest.mark.parametrize("url", ["ftp://viewer/{request_id}", "https://viewer/trace", "viewer/{request_id}"])
def test_trace_url_without_scheme_or_place_of_the_request_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"--trace-url must be http://… or https://… with \{request_id\} in it"):
        EdgeSettings(RpcServerSettings(), RpcChannelSettings(), HttpSettings(), trace_url=url)
