"""Audit every pinned version against the known vulnerabilities of OSV, by pip-audit.

    python scripts/audit.py

Each finding fails the audit unless `constraints/accepted.toml` lists it with a reason, until the day of its expiry. If
OSV cannot be reached, the audit says that nothing was audited, and passes: no verdict depends on a network.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.sbom import CONSTRAINTS, pins  # noqa: E402

OSV = "https://api.osv.dev/v1/query"
# Seconds that a few hundred queries may take; one that hangs counts as unreachable.
LIMIT_S = 300
# Names in pip-audit's stack where the network failed between two queries.
NETWORK = ("requests.exceptions.", "ServiceError", "ConnectionError", "urllib3.exceptions.")


class Unreachable(Exception):
    """OSV did not answer."""


class WrongException(Exception):
    """An entry of the file of exceptions lacks a field, or has one of another type."""


@dataclass(frozen=True)
class Accepted:
    """A known vulnerability that does not fail the audit."""

    id: str
    package: str
    reason: str
    expires: datetime.date


@dataclass(frozen=True)
class Finding:
    package: str
    version: str
    ids: frozenset[str]
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        fix = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "no version fixes it"
        return f"{self.package} {self.version}: {', '.join(sorted(self.ids))}; {fix}"


def accepted(file: Path) -> list[Accepted]:
    """Return the exceptions; raise `WrongException` for a wrong entry."""
    fields: dict[str, type] = {"id": str, "package": str, "reason": str, "expires": datetime.date}
    entries = []
    for number, entry in enumerate(tomllib.loads(file.read_text()).get("accepted", []), 1):
        wrong = [name for name, kind in fields.items() if type(entry.get(name)) is not kind or not entry[name]]
        wrong += sorted(set(entry) - set(fields))
        if wrong:
            raise WrongException(
                f"{file.name}: entry {number}: {', '.join(wrong)}: id, package, reason, expires (a date)"
            )
        entries.append(Accepted(**entry))
    return entries


def rejected(findings: Sequence[Finding], exceptions: Sequence[Accepted], today: datetime.date) -> Iterator[str]:
    """Yield a line for each finding that no exception in force names."""
    for finding in findings:
        named = [one for one in exceptions if one.package == finding.package and one.id in finding.ids]
        if not named:
            yield str(finding)
        elif all(one.expires < today for one in named):
            yield f"{finding} (accepted until {named[-1].expires})"


def audited(folder: Path, osv: str) -> list[Finding]:
    """Return the known vulnerabilities of the pinned versions; raise `Unreachable` without OSV."""
    reach(osv)
    with tempfile.TemporaryDirectory() as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text("".join(f"{name}=={version}\n" for name, version in pins(folder).items()))
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(requirements), "--no-deps", "--disable-pip"]
        command += ["--vulnerability-service", "osv", "--osv-url", osv, "--format", "json", "--progress-spinner", "off"]
        command += ["--cache-dir", str(Path(scratch) / "cache")]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, "CI": ""}
            )
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{osv}: no verdict after {LIMIT_S} s") from None
    if not ended.stdout.strip():
        last = (ended.stderr.strip().splitlines() or ["no output"])[-1]
        if any(name in ended.stderr for name in NETWORK):
            raise Unreachable(f"{osv}: {last}")
        raise RuntimeError(f"pip-audit failed: {last}")
    return list(findings_of(json.loads(ended.stdout)))


def reach(osv: str) -> None:
    """Ask OSV about a name that no package has; raise `Unreachable` unless it answers with JSON."""
    body = json.dumps({"package": {"name": "-", "ecosystem": "PyPI"}, "version": "0"}).encode()
    request = urllib.request.Request(osv, data=body, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            json.loads(answer.read())
    except (OSError, ValueError) as error:
        raise Unreachable(f"{osv}: {error}") from error


def findings_of(report: dict[str, Any]) -> Iterator[Finding]:
    """Yield the findings of pip-audit's report."""
    for package in report["dependencies"]:
        for found in package.get("vulns", []):
            ids = frozenset([found["id"], *found["aliases"]])
            yield Finding(package["name"], package["version"], ids, tuple(found["fix_versions"]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each finding that fails the audit."""
    parser = argparse.ArgumentParser(description="Audit every pinned version against known vulnerabilities.")
    parser.add_argument("--constraints", type=Path, default=CONSTRAINTS, help="Folder of the pins and of accepted.toml")
    parser.add_argument("--osv", default=OSV, help="Address of OSV's query API")
    given = parser.parse_args(arguments)
    exceptions = accepted(given.constraints / "accepted.toml")
    try:
        findings = audited(given.constraints, given.osv)
    except Unreachable as reason:
        print(f"NOT AUDITED, known vulnerabilities cannot be asked for: {reason}")
        return 0
    faults = list(rejected(findings, exceptions, datetime.datetime.now(datetime.UTC).date()))
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(pins(given.constraints))} pins audited: {len(findings)} findings, {len(faults)} of them not accepted")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
