"""Read prompts, and tables with a head, from text files, gzipped or not; an error names the line and the field."""

import csv
from collections.abc import Iterator
from pathlib import Path

from pentimento.domain.errors import InvalidArgument
from pentimento.files.lines import Line, numbered_lines


def read_prompts(path: Path) -> tuple[str, ...]:
    """Return in the file's order the lines of a .txt, or the field `prompt` (or `caption`) of a .tsv, .csv or .jsonl.
    Raises InvalidArgument, also for a file without prompts."""
    prompts = _prompts(path)
    if not prompts:
        raise InvalidArgument.of(str(path), "must have at least one prompt")
    return prompts


def _prompts(path: Path) -> tuple[str, ...]:
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind == ".txt":
        return tuple(text for _, text in numbered_lines(path))
    if kind == ".jsonl":
        return tuple(Line.of_json(path, number, text).text("prompt") for number, text in numbered_lines(path))
    if kind not in (".tsv", ".csv"):
        raise InvalidArgument.of(str(path), "must be a .txt, .tsv, .csv or .jsonl file (or one of them with .gz)")
    lines = table_lines(path, "\t" if kind == ".tsv" else ",")
    return tuple(line.text("caption" if line.has("caption") else "prompt") for line in lines)


def table_lines(path: Path, delimiter: str) -> Iterator[Line]:
    """Yield the rows of a table with a head, by its names. InvalidArgument for a row of another length, or invalid
    CSV."""
    rows = _rows(path, delimiter)
    _, names = next(rows, (1, []))
    for number, values in rows:
        if len(values) != len(names):
            raise InvalidArgument.of(f"{path}:{number}", f"must have {len(names)} fields, got {len(values)}")
        yield Line(path, number, dict(zip(names, values, strict=True)))


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each row's last line, and its values. Quoted values of CSV may hold the ends of lines."""
    lines = list(numbered_lines(path))
    if delimiter == "\t":
        # A tab-separated file has no quotes; a prompt may hold any quotation mark.
        yield from ((number, text.split("\t")) for number, text in lines)
        return
    rows = csv.reader((text + "\n" for _, text in lines), delimiter=delimiter, strict=True)
    try:
        for values in rows:
            yield lines[rows.line_num - 1][0], values
    except csv.Error as error:
        raise InvalidArgument.of(f"{path}:{lines[rows.line_num - 1][0]}", f"must be CSV: {error}") from None
