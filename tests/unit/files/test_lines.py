"""Text files read line by line: whatever is wrong with them is told by file and line."""

import gzip
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.files.lines import Line, numbered_lines


@pytest.mark.parametrize("cut", [slice(0, -9), slice(0, 5)], ids=["its end", "nearly all"])
def test_a_gzip_file_that_lacks_something_is_refused_by_name(tmp_path: Path, cut: slice) -> None:
    file = tmp_path / "log.gz"
    file.write_bytes(gzip.compress(b"a line\n" * 100)[cut])

    with pytest.raises(InvalidArgument, match="must be a whole gzip file"):
        list(numbered_lines(file))


def test_a_gzip_file_that_was_damaged_is_refused_by_name(tmp_path: Path) -> None:
    file, packed = tmp_path / "log.gz", bytearray(gzip.compress(b"a line\n" * 100))
    packed[10:14] = b"\xff" * 4
    file.write_bytes(packed)

    with pytest.raises(InvalidArgument, match="must be a whole gzip file"):
        list(numbered_lines(file))


@pytest.mark.parametrize("name", ["log.txt", "log.txt.gz"])
def test_the_mark_that_spreadsheets_begin_with_is_none_of_the_text(tmp_path: Path, name: str) -> None:
    file, text = tmp_path / name, b"\xef\xbb\xbfa cat\n"
    file.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    assert list(numbered_lines(file)) == [(1, "a cat")]


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "7"])
def test_a_line_that_is_no_object_is_named(text: str) -> None:
    with pytest.raises(InvalidArgument, match="log:3: must be a JSON object"):
        Line.of_json(Path("log"), 3, text)


def test_a_number_without_end_is_refused_by_its_field() -> None:
    with pytest.raises(InvalidArgument, match="log:3: at_s: must be a number"):
        Line(Path("log"), 3, {"at_s": 10**400}).number("at_s")
