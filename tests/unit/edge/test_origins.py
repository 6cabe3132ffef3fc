"""Which pages and names may call."""

import pytest
from starlette.requests import HTTPConnection

from pentimento.domain.errors import PermissionDenied
from services.edge.http.origins import origin_rule

OTHER = "https://app.example"


def request(**headers: str) -> HTTPConnection:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": raw})


@pytest.mark.parametrize(
    ("listen", "hosts", "headers"),
    [
        ("127.0.0.1:50480", (), {"host": "127.0.0.1:50480"}),
        ("127.0.0.1:50480", (), {"host": "LocalHost"}),
        ("[::1]:50480", (), {"host": "[::1]:50480"}),
        ("0.0.0.0:50480", (), {"host": "anything.example"}),
        ("0.0.0.0:50480", ("a.example",), {"host": "a.example:443"}),
        ("0.0.0.0:50480", ("a.example", "edge"), {"host": "edge:50480"}),
        ("0.0.0.0:50480", ("a.example",), {"host": "10.1.2.3:50480"}),
        ("0.0.0.0:50480", ("a.example",), {"host": "[fd00::1]:50480"}),
        ("127.0.0.1:1", (), {"host": "localhost:1", "origin": "http://localhost:1"}),
        ("127.0.0.1:1", (), {"host": "localhost:1", "origin": OTHER}),
        ("127.0.0.1:1", (), {"host": "localhost:1", "sec_fetch_site": "same-origin"}),
        ("127.0.0.1:1", (), {"host": "localhost:1", "sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}),
    ],
)
def test_ours_may_call(listen: str, hosts: tuple[str, ...], headers: dict[str, str]) -> None:
    origin_rule(listen, hosts, (OTHER,)).check(request(**headers))


@pytest.mark.parametrize(
    ("listen", "hosts", "headers", "reason"),
    [
        ("127.0.0.1:1", (), {"host": "evil.example"}, "WRONG_HOST"),
        ("127.0.0.1:1", (), {}, "WRONG_HOST"),
        ("127.0.0.1:1", (), {"host": "localhost.evil.example"}, "WRONG_HOST"),
        ("0.0.0.0:1", ("a.example",), {"host": "b.example"}, "WRONG_HOST"),
        ("127.0.0.1:1", (), {"host": "localhost:1", "origin": "http://localhost:2"}, "WRONG_ORIGIN"),
        ("127.0.0.1:1", (), {"host": "localhost:1", "origin": "null"}, "WRONG_ORIGIN"),
        ("127.0.0.1:1", (), {"host": "localhost:1", "origin": ""}, "WRONG_ORIGIN"),
        ("127.0.0.1:1", (), {"host": "localhost:1", "origin": "http://["}, "WRONG_ORIGIN"),
        ("127.0.0.1:1", (), {"host": "localhost:1", "origin": "https://app.example.evil"}, "WRONG_ORIGIN"),
        (
            "127.0.0.1:1",
            (),
            {"host": "localhost:1", "sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"},
            "WRONG_ORIGIN",
        ),
    ],
)
def test_others_may_not(listen: str, hosts: tuple[str, ...], headers: dict[str, str], reason: str) -> None:
    with pytest.raises(PermissionDenied) as refused:
        origin_rule(listen, hosts, (OTHER,)).check(request(**headers))

    assert refused.value.reason == reason
