"""Read public logs in their publishers' forms (or small extracts in the same form), gzipped or not.

Times are seconds from the first row. Errors name line and field.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from lab.workloads.arrival import Embeddings
from lab.workloads.times import Times
from pentimento.domain.errors import InvalidArgument
from pentimento.files.lines import Line, numbered_lines, table_lines


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
    """Gentd26's timed requests. It may be measured with, not passed on."""
    lines = list(table_lines(path, ","))
    times = _from_first([_moment(line, "gmt_create") for line in lines])
    return tuple(_production_request(line, float(at)) for at, line in zip(times, lines, strict=True))


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
