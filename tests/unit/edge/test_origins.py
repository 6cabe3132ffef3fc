"""Test the pages and host names that may call."""

import pytest
from starlette.requests import HTTPConnection

from pentimento.domain.errors import PermissionDenied
from services.edge.http.callers import origin_rule

OTHER = "https://app.example"


def request(**headers: str) -> HTTPConnection:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": raw})


ONE, ALL, LOCAL = "127.0.0.1:1", "0.0.0.0:1", {"host": "localhost:1"}
NAMED = ("a.example",)
ALLOWED: tuple[tuple[str, tuple[str, ...], dict[str, str]], ...] = (
    ("127.0.0.1:50480", (), {"host": "127.0.0.1:50480"}),
    ("127.0.0.1:50480", (), {"host": "LocalHost"}),
    ("[::1]:50480", (), {"host": "[::1]:50480"}),
    (ALL, (), {"host": "anything.example"}),
    (ALL, NAMED, {"host": "a.example:443"}),
    ("0.0.0.0:50480", ("a.example", "edge"), {"host": "edge:50480"}),
    ("0.0.0.0:50480", NAMED, {"host": "10.1.2.3:50480"}),
    ("0.0.0.0:50480", NAMED, {"host": "[fd00::1]:50480"}),
    (ONE, (), {**LOCAL, "origin": "http://localhost:1"}),
    (ONE, (), {**LOCAL, "origin": OTHER}),
    (ONE, (), {**LOCAL, "sec_fetch_site": "same-origin"}),
    (ONE, (), {**LOCAL, "sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}),
)
REFUSED: tuple[tuple[str, tuple[str, ...], dict[str, str], str], ...] = (
    (ONE, (), {"host": "evil.example"}, "WRONG_HOST"),
    (ONE, (), {}, "WRONG_HOST"),
    (ONE, (), {"host": "localhost.evil.example"}, "WRONG_HOST"),
    (ALL, NAMED, {"host": "b.example"}, "WRONG_HOST"),
    (ONE, (), {**LOCAL, "origin": "http://localhost:2"}, "WRONG_ORIGIN"),
    (ONE, (), {**LOCAL, "origin": "null"}, "WRONG_ORIGIN"),
    (ONE, (), {**LOCAL, "origin": ""}, "WRONG_ORIGIN"),
    (ONE, (), {**LOCAL, "origin": "http://["}, "WRONG_ORIGIN"),
    (ONE, (), {**LOCAL, "origin": "https://app.example.evil"}, "WRONG_ORIGIN"),
    (ONE, (), {**LOCAL, "sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"}, "WRONG_ORIGIN"),
)


def test_origin_rule_allows_own_hosts_and_pages_alone() -> None:
    for listen, hosts, headers in ALLOWED:
        origin_rule(listen, hosts, (OTHER,)).check(request(**headers))
    for listen, hosts, headers, reason in REFUSED:
        with pytest.raises(PermissionDenied) as refused:
            origin_rule(listen, hosts, (OTHER,)).check(request(**headers))
        assert refused.value.reason == reason, headers
