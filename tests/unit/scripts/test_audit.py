"""Known vulnerabilities of pins fail the audit unless they are accepted. Without OSV it passes."""

import datetime
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scripts.audit import CONSTRAINTS, Accepted, Finding, WrongException, accepted, main, rejected

PINS = "# comment\n-c base.txt\nparser==0.4\nserver==2.1\n"
KNOWN = {
    ("parser", "0.4"): {
        "id": "GHSA-aaaa-bbbb-cccc",
        "aliases": ["CVE-2026-1"],
        "summary": "reads past the end",
        "affected": [
            {
                "package": {"name": "parser", "ecosystem": "PyPI"},
                "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "0.5"}]}],
            }
        ],
    }
}
LATER, EARLIER = "2999-01-01", "2026-01-01"
ENTRY = '[[accepted]]\nid = "CVE-2026-1"\npackage = "parser"\nreason = "not called"\nexpires = {}\n'


class Osv(BaseHTTPRequestHandler):
    """Answer queries as OSV's API version 1 does; `broken` fails every query about a package."""

    broken = False

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["content-length"])))
        name = query["package"]["name"]
        found = KNOWN.get((name, query["version"]))
        body = json.dumps({"vulns": [found]} if found else {}).encode()
        self.send_response(500 if self.broken and name != "-" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def osv() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Osv) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()


def constraints(folder: Path, exceptions: str = "") -> list[str]:
    (folder / "base.txt").write_text(PINS)
    (folder / "accepted.toml").write_text(exceptions)
    return ["--constraints", str(folder)]


@pytest.mark.parametrize(
    ("exceptions", "code", "fault"),
    [
        ("", 1, "parser 0.4: CVE-2026-1, GHSA-aaaa-bbbb-cccc; fixed in 0.5\n"),
        (ENTRY.format(LATER), 0, ""),
    ],
)
def test_audit_of_vulnerable_pin_fails_unless_accepted(
    tmp_path: Path, osv: str, capsys: pytest.CaptureFixture[str], exceptions: str, code: int, fault: str
) -> None:
    assert main([*constraints(tmp_path, exceptions), "--osv", osv]) == code

    printed = capsys.readouterr()
    assert printed.err == fault
    assert printed.out == f"2 pins audited: 1 findings, {code} of them not accepted\n"


def test_audit_without_osv_says_so_and_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*constraints(tmp_path), "--osv", "http://127.0.0.1:1/v1/query"]) == 0

    assert capsys.readouterr().out.startswith(
        "NOT AUDITED, known vulnerabilities cannot be asked for: http://127.0.0.1:1"
    )


def test_audit_if_osv_fails_between_queries_says_so_and_passes(
    tmp_path: Path, osv: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Osv, "broken", True)

    assert main([*constraints(tmp_path), "--osv", osv]) == 0

    assert capsys.readouterr().out.startswith("NOT AUDITED")


@pytest.mark.parametrize(
    ("package", "id", "expires", "expected"),
    [
        ("parser", "A-1", LATER, []),
        ("parser", "A-1", "2026-06-01", []),
        ("parser", "A-1", EARLIER, ["parser 0.4: A-1, B-1; no version fixes it (accepted until 2026-01-01)"]),
        ("parser", "C-1", LATER, ["parser 0.4: A-1, B-1; no version fixes it"]),
        ("server", "A-1", LATER, ["parser 0.4: A-1, B-1; no version fixes it"]),
    ],
)
def test_rejected_finding_with_exception_is_listed_once_it_is_expired_or_of_another(
    package: str, id: str, expires: str, expected: list[str]
) -> None:
    finding = Finding("parser", "0.4", frozenset({"A-1", "B-1"}), ())
    exception = Accepted(id, package, "not called", datetime.date.fromisoformat(expires))

    assert list(rejected([finding], [exception], datetime.date(2026, 6, 1))) == expected


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        (ENTRY.format('"2027-01-01"'), "expires"),
        (ENTRY.format(LATER).replace('"not called"', '""'), "reason"),
        (ENTRY.format(LATER) + 'why = "so"\n', "why"),
    ],
)
def test_accepted_with_wrong_entry_names_field(tmp_path: Path, entry: str, named: str) -> None:
    (tmp_path / "accepted.toml").write_text(entry)

    with pytest.raises(WrongException, match=f"accepted.toml: entry 1: {named}: "):
        accepted(tmp_path / "accepted.toml")


def test_exceptions_of_the_repository_are_well_formed() -> None:
    assert [entry for entry in accepted(CONSTRAINTS / "accepted.toml") if len(entry.reason) < 10] == []
