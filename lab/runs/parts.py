"""Publish benchmarks with parts that can be measured one at a time; a run keeps the file's results of other parts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.runs.machine import current_commit, now
from lab.runs.measure import Figure, Notes, Options, at_least, publish


@dataclass(frozen=True)
class PartResult:
    """Hold a part's figures, each named `PART: …`, and how they were measured; `missing` is the reason for none."""

    figures: list[Figure] = field(default_factory=list)
    notes: Notes = field(default_factory=dict)
    missing: str = ""


def merge_parts(
    earlier: Path | None, order: Sequence[str], found: Mapping[str, PartResult]
) -> tuple[list[Figure], dict[str, Notes]]:
    """Return the figures of all parts in order, and notes by part: the new ones, or else those of the earlier result.

    A part that could not be measured now keeps its earlier figures; its notes say so, and the run falls short
    (`publish_parts`). A part with neither is one missing figure.
    """
    before = read_parts(earlier) if earlier is not None else {}
    stamp = {"at": now(), "commit": current_commit()}
    figures: list[Figure] = []
    notes: dict[str, Notes] = {}
    for part in order:
        known = before.get(part)
        if part in found and found[part].missing and known is not None and _is_measured(known):
            figures += known.figures
            notes[part] = {**known.notes, "not_measured_again": {**stamp, "missing": found[part].missing}}
        elif part in found:
            result = found[part]
            missing = {"missing": result.missing} if result.missing else {}
            notes[part] = {**stamp, **result.notes, **missing}
            figures += result.figures or [missing_figure(part)]
        elif known is not None:
            figures += known.figures
            notes[part] = known.notes
        else:
            figures.append(missing_figure(part))
            notes[part] = {"missing": "not measured yet"}
    return figures, notes


def publish_parts(options: Options, order: Sequence[str], found: Mapping[str, PartResult], notes: Notes) -> int:
    """Write the new parts, and with `--only` the file's others.

    Returns the exit code, which is 1 also if a requested part could not be measured.
    """
    figures, by_part = merge_parts(options.out if options.rest["only"] else None, order, found)
    published = publish(options, figures, notes={**notes, "parts": by_part})
    return 1 if any(result.missing for result in found.values()) else published


def _is_measured(result: PartResult) -> bool:
    return any(figure.value is not None for figure in result.figures)


def read_parts(path: Path) -> dict[str, PartResult]:
    """Return a result file's contents by part."""
    if not path.exists():
        return {}
    result: dict[str, Any] = json.loads(path.read_text())
    figures: dict[str, list[Figure]] = {}
    for row in result["figures"]:
        figures.setdefault(row["name"].partition(": ")[0], []).append(Figure.from_row(row))
    notes = result["notes"].get("parts", {})
    return {part: PartResult(found, notes.get(part, {})) for part, found in figures.items()}


def missing_figure(part: str) -> Figure:
    return Figure(f"{part}: missing", None, at_least(0.0))
