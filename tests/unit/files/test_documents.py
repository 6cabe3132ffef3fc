"""Files of JSON objects: read by path and directory, rejected with their fault."""

from functools import partial
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.files.json_values import json_files, parsed_json, read_document
from tests.support.logged import said_by

parse = partial(parsed_json, field="profile")


def test_read_document_returns_parsed_text(tmp_path: Path) -> None:
    file = tmp_path / "heavy.json"
    file.write_text('{"model": "heavy"}')

    assert read_document(file, parse, "profiles") == {"model": "heavy"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n"model"', "profile: must be JSON: line 2: "),
        ("[" * 100_000, "profile: must be JSON: "),
        ("1" * 10_000, "profile: must be JSON: "),
        ("[]", "profile: must be a JSON object"),
    ],
)
def test_read_document_names_file_and_fault(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(text)

    with pytest.raises(InvalidArgument) as refused:
        read_document(file, parse, "profiles")

    assert str(refused.value).startswith(f"profiles: {file}: {message}")


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "wrong.json"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(InvalidArgument, match=f"profiles: must be files that can be read: {file}"):
        read_document(file, parse, "profiles")


def test_json_files_missing_directory_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "there.json").touch()

    assert json_files([tmp_path / "selector", tmp_path]) == [tmp_path / "there.json"]
    assert [record.getMessage() for record in said_by("pentimento.files.json_values", caplog)] == [
        f"no directory {tmp_path}/selector: it is skipped"
    ]


def test_directories_stand_for_their_json_files_in_order(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "c.txt"):
        (tmp_path / name).touch()

    assert json_files([tmp_path / "c.txt", tmp_path]) == [tmp_path / name for name in ("c.txt", "a.json", "b.json")]
