"""Records of a run in a file: JSON lines, the first one the header with where they come from.

    {"format": 1, "name": "live-1", "provenance": {…}, "records": 2}
    {"request_id": "…", "tenant": "default", "slo_class": "standard", "pool": "heavy", "arrived_s": 0.5, …}

Fields at their default are left out; `stages` are lists of (name, began_s, ended_s). A name in .gz is compressed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from lab.runs.record import Outcome, RequestRecord, StageSpan, StartKind
from lab.workloads.line_files import check_count, open_lines, save_lines, sparse
from pentimento.files.lines import Line

FORMAT = 1
_sparse = sparse(RequestRecord)

Word = TypeVar("Word", bound=StrEnum)


@dataclass(frozen=True)
class Run:
    """The records of one run."""

    name: str
    provenance: Mapping[str, Any]
    records: tuple[RequestRecord, ...]


def save_run(run: Run, path: Path) -> None:
    """Write the run's file, whole or not at all."""
    provenance = dict(run.provenance)
    header = {"format": FORMAT, "name": run.name, "provenance": provenance, "records": len(run.records)}
    save_lines(path, header, map(_sparse, run.records))


def load_run(path: Path) -> Run:
    """Return the run of a file. Raises NotFound, or InvalidArgument that names file, line, field and limit."""
    header, lines = open_lines(path, FORMAT)
    records = tuple(map(_record, lines))
    check_count(header, "records", len(records))
    return Run(header.text("name"), header.objects("provenance"), records)


def _record(line: Line) -> RequestRecord:
    arrived_s, ended_s = line.number("arrived_s"), line.number("ended_s")
    if ended_s < arrived_s:
        raise line.wrong("ended_s", f"must not be before arrived_s ({arrived_s:g}), got {ended_s:g}")
    return RequestRecord(
        request_id=line.text("request_id"),
        tenant=line.text("tenant"),
        slo_class=line.text("slo_class"),
        pool=line.text("pool"),
        arrived_s=arrived_s,
        deadline_s=line.number("deadline_s"),
        ended_s=ended_s,
        outcome=_word(line, "outcome", Outcome),
        start=_word(line, "start", StartKind) if line.has("start") else StartKind.NOISE,
        start_step=line.count("start_step") if line.has("start_step") else 0,
        steps=line.count("steps") if line.has("steps") else 0,
        model=line.text("model") if line.has("model") else "",
        deferred=line.flag("deferred") if line.has("deferred") else False,
        confidence=line.number("confidence") if line.has("confidence") else None,
        quality=line.number("quality", float("-inf")) if line.has("quality") else None,
        stages=_stages(line) if line.has("stages") else (),
        device_s=line.number("device_s") if line.has("device_s") else 0.0,
    )


def _word(line: Line, name: str, words: type[Word]) -> Word:
    try:
        return words(line.text(name))
    except ValueError:
        raise line.wrong(name, f"must be one of {', '.join(words)}, got {line.text(name)!r}") from None


def _stages(line: Line) -> tuple[StageSpan, ...]:
    stages = line.raw("stages")
    limit = "must be a list of [name, began_s, ended_s], ended_s not before began_s"
    if not isinstance(stages, list):
        raise line.wrong("stages", limit)
    found = []
    for stage in stages:
        match stage:
            case [str(name), float() | int() as began_s, float() | int() as ended_s] if began_s <= ended_s:
                found.append(StageSpan(name, float(began_s), float(ended_s)))
            case _:
                raise line.wrong("stages", limit)
    return tuple(found)
