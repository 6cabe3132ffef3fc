"""Text files read line by line, and files of prompts in each form: errors name file and line."""

import gzip
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.files.lines import Line, numbered_lines, read_prompts
from tests.support.refusals import wrong_refusals
from tests.support.text_files import write_lines

PACKED = gzip.compress(b"a line\n" * 100)


def test_numbered_lines_names_broken_gzip_file(tmp_path: Path) -> None:
    file = tmp_path / "log.gz"
    for data in (PACKED[:-9], PACKED[:5], PACKED[:10] + b"\xff" * 4 + PACKED[14:]):
        file.write_bytes(data)
        with pytest.raises(InvalidArgument, match="must be a whole gzip file"):
            list(numbered_lines(file))


@pytest.mark.parametrize("name", ["log.txt", "log.txt.gz"])
def test_the_mark_that_spreadsheets_begin_with_is_none_of_the_text(tmp_path: Path, name: str) -> None:
    file, text = tmp_path / name, b"\xef\xbb\xbfa cat\n"
    file.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    assert list(numbered_lines(file)) == [(1, "a cat")]


def test_line_names_wrong_object_and_number() -> None:
    for text in ("[" * 100_000, "{", "7"):
        with pytest.raises(InvalidArgument, match="log:3: must be a JSON object"):
            Line.of_json(Path("log"), 3, text)
    with pytest.raises(InvalidArgument, match="log:3: at_s: must be a number"):
        Line(Path("log"), 3, {"at_s": 10**400}).number("at_s")


FILES: list[tuple[str, list[str]]] = [
    ("p.txt", ["a cat", 'a "dog", two']),
    ("p.tsv", ["prompt\tnote", "a cat\tx", 'a "dog", two\ty']),
    ("p.tsv.gz", ["id\tcaption", "1\ta cat", '2\ta "dog", two']),
    ("p.jsonl", ['{"prompt": "a cat"}', '{"prompt": "a \\"dog\\", two"}']),
    ("p.csv", ["id,prompt", "1,a cat", '2,"a ""dog"", two"']),
    ("p.csv", ['"id","prompt"', '"1","a cat"', '"2","a ""dog"", two"']),
    ("p.csv", ["\ufeffprompt,id", "a cat,1", '"a ""dog"", two",2']),
]


def test_read_prompts_keeps_order_and_lines(tmp_path: Path) -> None:
    for name, lines in FILES:
        assert read_prompts(write_lines(tmp_path / name, *lines)) == ("a cat", 'a "dog", two'), (name, lines)
    of_lines = write_lines(tmp_path / "lines.csv", "prompt", '"a cat', 'on a mat"', "a dog")
    assert read_prompts(of_lines) == ("a cat\non a mat", "a dog")


WRONG: list[tuple[str, list[str], str]] = [
    ("p.csv", ["prompt", "a cat", "x" * 200_000], r":3: must be CSV: field larger than"),
    ("p.csv", ["prompt,id", '"a cat', "on a mat,1"], r":3: must be CSV: unexpected end of data"),
    ("p.csv", ["prompt,id", '"a cat', 'on a mat"', "a dog,2"], r":3: must have 2 fields, got 1"),
    ("p.txt", [], r"p\.txt: must have at least one prompt"),
    ("p.parquet", ["x"], r"must be a \.txt, \.tsv"),
]


def test_read_prompts_names_wrong_file_and_line(tmp_path: Path) -> None:
    def read(name: str, lines: list[str]) -> None:
        read_prompts(write_lines(tmp_path / name, *lines))

    assert wrong_refusals(InvalidArgument, read, WRONG) == []
