"""Files of prompts, in each form."""

from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.files.prompts import read_prompts
from tests.support.text_files import write_lines


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("p.txt", ["a cat", 'a "dog", two']),
        ("p.tsv", ["prompt\tnote", "a cat\tx", 'a "dog", two\ty']),
        ("p.tsv.gz", ["id\tcaption", "1\ta cat", '2\ta "dog", two']),
        ("p.jsonl", ['{"prompt": "a cat"}', '{"prompt": "a \\"dog\\", two"}']),
        ("p.csv", ["id,prompt", "1,a cat", '2,"a ""dog"", two"']),
        ("p.csv", ['"id","prompt"', '"1","a cat"', '"2","a ""dog"", two"']),
        ("p.csv", ["\ufeffprompt,id", "a cat,1", '"a ""dog"", two",2']),
    ],
)
def test_prompts_are_read_in_order(tmp_path: Path, name: str, lines: list[str]) -> None:
    assert read_prompts(write_lines(tmp_path / name, *lines)) == ("a cat", 'a "dog", two')


def test_a_prompt_of_several_lines_is_one_prompt(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "p.csv", "prompt", '"a cat', 'on a mat"', "a dog")

    assert read_prompts(file) == ("a cat\non a mat", "a dog")


def test_a_file_of_no_prompts_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"p\.txt: must have at least one prompt"):
        read_prompts(write_lines(tmp_path / "p.txt"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["prompt", "a cat", "x" * 200_000], r":3: must be CSV: field larger than"),
        (["prompt,id", '"a cat', "on a mat,1"], r":3: must be CSV: unexpected end of data"),
        (["prompt,id", '"a cat', 'on a mat"', "a dog,2"], r":3: must have 2 fields, got 1"),
    ],
)
def test_read_prompts_names_a_wrong_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read_prompts(write_lines(tmp_path / "log.csv", *lines))


def test_a_file_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"must be a \.txt, \.tsv"):
        read_prompts(write_lines(tmp_path / "p.parquet", "x"))
