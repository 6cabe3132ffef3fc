"""Readers of public logs in the forms that their publishers (or small extracts of them) have; gzipped or not.

Times come as seconds from the first row. A line that is wrong is named with its field.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from pentimento.domain.errors import InvalidArgument
from pentimento.files.lines import Line, numbered_lines
from pentimento.workloads.arrival import Embeddings
from pentimento.workloads.times import Times


@dataclass(frozen=True)
class KeyedRequest:
    """A request of Mooncake's trace: the keys are hashes of its 512-token blocks."""

    at_s: float
    keys: tuple[int, ...]


@dataclass(frozen=True)
class ProductionRequest:
    """A request of gentd26 (alibaba/clusterdata, cluster-trace-v2026-GenAI; Lin et al., SoCC 2025)."""

    at_s: float
    kind: str
    succeeded: bool
    execution_s: float
    group: str
    images: int | None
    steps: int | None
    checkpoint: str
    loras: tuple[tuple[str, float], ...]


def read_azure_times(path: Path) -> Times:
    """Arrivals of Azure's LLM inference trace (CSV with TIMESTAMP)."""
    return _from_first([_moment(line, "TIMESTAMP") for line in table_lines(path, ",")])


def read_mooncake(path: Path) -> tuple[KeyedRequest, ...]:
    """Mooncake's traces: JSON lines with `timestamp` in milliseconds and `hash_ids`."""
    lines = [Line.of_json(path, number, text) for number, text in numbered_lines(path)]
    times = _from_first([line.number("timestamp") / 1000.0 for line in lines])
    return tuple(KeyedRequest(float(at), _keys(line)) for at, line in zip(times, lines, strict=True))


def read_production_requests(path: Path) -> tuple[ProductionRequest, ...]:
    """gentd26's timed requests. It may be measured with, not passed on."""
    lines = list(table_lines(path, ","))
    times = _from_first([_moment(line, "gmt_create") for line in lines])
    return tuple(_production_request(line, float(at)) for at, line in zip(times, lines, strict=True))


def read_prompts(path: Path) -> tuple[str, ...]:
    """Return in the file's order the lines of a .txt, or the field `prompt` (or `caption`) of a .tsv, .csv or .jsonl.
    Raises InvalidArgument, also for a file without any."""
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


def read_embeddings(path: Path, rows: int) -> Embeddings:
    """A .npy of `rows` vectors as float32 of unit length."""
    try:
        found = np.load(path, allow_pickle=False).astype(np.float32)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidArgument.of(str(path), f"must be a .npy file of numbers: {error}") from None
    if found.ndim != 2 or len(found) != rows:
        raise InvalidArgument.of(str(path), f"must be ({rows}, width), got {found.shape}")
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not (lengths > 0).all():
        raise InvalidArgument.of(str(path), f"must be finite and not zero; row {int(np.argmin(lengths > 0))} is wrong")
    return np.asarray(found / lengths, np.float32)


def table_lines(path: Path, delimiter: str) -> Iterator[Line]:
    """Yield the rows of a table with a head, by its names. InvalidArgument for a row of another length, or none of
    CSV."""
    rows = _rows(path, delimiter)
    _, names = next(rows, (1, []))
    for number, values in rows:
        if len(values) != len(names):
            raise InvalidArgument.of(f"{path}:{number}", f"must have {len(names)} fields, got {len(values)}")
        yield Line(path, number, dict(zip(names, values, strict=True)))


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The number of each row's last line, and its values. Quoted values of CSV may hold the ends of lines."""
    lines = list(numbered_lines(path))
    if delimiter == "\t":
        # A tab-separated file quotes nothing; a prompt may hold any quotation mark.
        yield from ((number, text.split("\t")) for number, text in lines)
        return
    rows = csv.reader((text + "\n" for _, text in lines), delimiter=delimiter, strict=True)
    try:
        for values in rows:
            yield lines[rows.line_num - 1][0], values
    except csv.Error as error:
        raise InvalidArgument.of(f"{path}:{lines[rows.line_num - 1][0]}", f"must be CSV: {error}") from None


def _moment(line: Line, name: str) -> float:
    """Seconds of the epoch; the publishers print up to seven digits after the second, datetime reads six."""
    text = line.text(name)
    seconds, _, fraction = text.partition(".")
    try:
        return datetime.fromisoformat(f"{seconds}+00:00").timestamp() + float(f"0.{fraction or 0}")
    except ValueError:
        raise line.wrong(name, f"must be a time like 2023-11-16 18:15:46.68, got {text!r}") from None


def _from_first(times: list[float]) -> Times:
    found = np.asarray(times, np.float64)
    return found - found.min() if len(found) else found


def _keys(line: Line) -> tuple[int, ...]:
    keys = line.raw("hash_ids")
    if not isinstance(keys, list) or not all(isinstance(key, int) for key in keys):
        raise line.wrong("hash_ids", "must be a list of whole numbers")
    return tuple(keys)


def _production_request(line: Line, at_s: float) -> ProductionRequest:
    return ProductionRequest(
        at_s=at_s,
        kind=line.text("predict_type"),
        succeeded=line.text("predict_status") == "SUCCEED",
        execution_s=line.number("exec_s"),
        group=line.text("group"),
        images=line.count("num_images") if line.text("num_images") else None,
        steps=line.count("steps") if line.text("steps") else None,
        checkpoint=line.text("checkpoint"),
        loras=tuple(_lora(line, item) for item in line.text("loras").split(";") if item),
    )


def _lora(line: Line, item: str) -> tuple[str, float]:
    name, _, scale = item.partition("@")
    try:
        return name, float(scale)
    except ValueError:
        raise line.wrong("loras", f"must be like L0000@0.8;L0001@1, got {item!r}") from None
