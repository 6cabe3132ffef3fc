"""Compare contracts with the last version in git, and find breaking changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import breaking_contracts
from scripts.breaking_contracts import DESCRIPTOR_SET, ROOT, committed, earlier_revision, exit_code, what_breaks


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the machine's git configuration, such as signed commits, in the test repositories."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for command in (
        ("init", "-q", "-b", "main"),
        ("config", "user.email", "nobody@example.invalid"),
        ("config", "user.name", "nobody"),
        ("commit", "-q", "--allow-empty", "-m", "first"),
    ):
        run(tmp_path, *command)
    return tmp_path


def run(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=repository, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(repository: Path, data: bytes) -> str:
    file = repository / DESCRIPTOR_SET
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)
    run(repository, "add", "-A")
    run(repository, "commit", "-q", "-m", "next")
    return run(repository, "rev-parse", "HEAD")


def test_without_history_there_is_nothing_to_compare_with(tmp_path: Path, repository: Path) -> None:
    assert earlier_revision(repository) == "", "main itself, and no tag"
    assert committed(repository, "HEAD") is None


def test_where_git_knows_nothing_the_output_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(breaking_contracts, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", "")

    assert breaking_contracts.main([]) == 0
    assert capsys.readouterr().out == "contracts are compared with nothing: no earlier version here\n"


def test_without_git_a_named_revision_has_nothing_to_compare_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(breaking_contracts, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", "")

    assert breaking_contracts.main(["v1.0.0"]) == 0
    assert capsys.readouterr().out == "contracts are compared with nothing: v1.0.0 has none\n"


def test_branch_is_compared_with_its_base_or_last_tag(repository: Path) -> None:
    base = commit(repository, b"one")
    run(repository, "switch", "-q", "-c", "branch")
    commit(repository, b"two")
    assert earlier_revision(repository) == base
    assert committed(repository, base) == b"one"

    run(repository, "tag", "v0.1.0")
    commit(repository, b"three")

    assert earlier_revision(repository) == "v0.1.0"
    assert committed(repository, "v0.1.0") == b"two"


def test_a_release_is_compared_with_the_one_before_it(repository: Path) -> None:
    commit(repository, b"one")
    run(repository, "tag", "v1.0.0")
    commit(repository, b"two")
    run(repository, "tag", "v1.1.0")
    run(repository, "tag", "latest")

    assert earlier_revision(repository) == "v1.0.0"


def test_the_first_release_of_main_is_compared_with_nothing(repository: Path) -> None:
    commit(repository, b"one")
    run(repository, "tag", "v1.0.0")

    assert earlier_revision(repository) == ""


@pytest.mark.parametrize(("version", "broken", "code"), [("0.9.3", ["x"], 0), ("1.0.0", ["x"], 1), ("1.0.0", [], 0)])
def test_breaking_change_fails_from_version_one_on(version: str, broken: list[str], code: int) -> None:
    assert exit_code(version, broken) == code


def test_a_field_that_is_gone_breaks_and_a_new_one_does_not(tmp_path: Path) -> None:
    protos = tmp_path / "protos"
    (protos / "a" / "v1").mkdir(parents=True)
    (protos / "buf.yaml").write_text((ROOT / "protos" / "buf.yaml").read_text())
    contract = protos / "a" / "v1" / "a.proto"

    def built(*fields: str) -> bytes:
        body = "".join(f"  string {name} = {number};\n" for number, name in enumerate(fields, 1))
        contract.write_text(f'syntax = "proto3";\npackage a.v1;\nmessage Message {{\n{body}}}\n')
        command = [str(Path(sys.executable).parent / "buf"), "build", "-o", str(tmp_path / "out.binpb")]
        subprocess.run(command, cwd=protos, check=True)
        return (tmp_path / "out.binpb").read_bytes()

    earlier = built("kept", "dropped")

    built("kept", "dropped", "added")
    assert what_breaks(protos, earlier) == []
    built("kept")
    (line,) = what_breaks(protos, earlier)
    assert "dropped" in line
