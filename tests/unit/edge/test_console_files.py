"""The console's files: small, from here alone, and whole."""

import re

from starlette.requests import Request

from services.edge.console.pages import POLICY, STATIC, read_files, takes_gzip

# Total size of all files, compressed.
MOST_BYTES = 500_000


def test_everything_together_is_small() -> None:
    assert sum(len(file.compressed) for file in read_files().values()) <= MOST_BYTES


def test_no_asset_comes_from_another_host() -> None:
    addresses = re.compile(r"https?://(?!www\.w3\.org/)[^\s\"'`)]*")
    found = {path.name: addresses.findall(path.read_text()) for path in STATIC.iterdir()}

    assert {name: addresses for name, addresses in found.items() if addresses} == {}


def test_files_named_by_files_exist() -> None:
    named = re.compile(r"""(?:/console/static/|from "\./|import\("\./)([\w.-]+)""")
    wanted = {name for path in STATIC.iterdir() for name in named.findall(path.read_text())}

    assert wanted <= read_files().keys()
    assert read_files().keys() - wanted == {"index.html"}


def test_nothing_parses_markup_or_text_as_code() -> None:
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\.cookie")
    found = {path.name for path in STATIC.glob("*.js") if forbidden.search(path.read_text())}

    assert found == set()
    assert POLICY["script-src"] == POLICY["style-src"] == "'self'"


def test_takes_gzip_reads_accepted_encodings() -> None:
    for accepted, taken in (
        ("gzip, deflate, br", True),
        ("br;q=1.0, GZIP;q=0.5", True),
        ("", False),
        ("x-gzip", False),
        ("gzip;q=0", False),
        ("deflate, gzip; q=0.000", False),
    ):
        request = Request({"type": "http", "headers": [(b"accept-encoding", accepted.encode())]})
        assert takes_gzip(request) is taken, accepted
