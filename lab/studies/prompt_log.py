"""A log of prompts with what it knows of their times and users.

Read are workload files, and .txt, .tsv, .csv or .jsonl (gzipped or not) with a field `prompt` (or `caption`). Optional
are a time, `at_s` (seconds) or `timestamp` (ISO 8601, or seconds), and a user, `user`, `user_name` or `tenant`. A field
that the first line has must be in every line.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.workloads import Workload, load_workload
from lab.workloads.readers import ProductionRequest
from pentimento.domain.errors import InvalidArgument
from pentimento.files.lines import Line, numbered_lines, read_prompts, table_lines

TIMES, USERS = ("at_s", "timestamp"), ("user", "user_name", "tenant")
PROMPTS = ("prompt", "caption")


@dataclass(frozen=True)
class PromptLog:
    """Prompts in the file's order; `at_s` (n,) seconds and `users` where the log knows them. `repr` holds no prompt."""

    name: str
    prompts: tuple[str, ...] = field(repr=False)
    at_s: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    users: tuple[str, ...] | None = field(default=None, repr=False)
    composite: bool = False

    def in_order(self) -> npt.NDArray[np.int64]:
        """Return the rows by time; equal times, and logs without times, stay in the file's order."""
        if self.at_s is None:
            return np.arange(len(self.prompts))
        return np.argsort(self.at_s, kind="stable")


def read_prompt_log(path: Path) -> PromptLog:
    """Return the log of a file. NotFound, or InvalidArgument that names file, line, field and limit."""
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind == ".jsonl":
        log = _read_json_lines(path)
    elif kind in (".tsv", ".csv"):
        log = _of_lines(path.name, list(table_lines(path, "\t" if kind == ".tsv" else ",")))
    else:
        log = PromptLog(path.name, read_prompts(path))
    if len(log.prompts) < 2:
        raise InvalidArgument.of(str(path), f"must hold at least 2 prompts, got {len(log.prompts)}")
    return log


def with_production_times(log: PromptLog, requests: Sequence[ProductionRequest]) -> PromptLog:
    """Return the log's prompts at the times, and from the users, of a production log, in the order of both.

    The longer one is cut. The result is a composite: a user's prompts were not that user's. Raises InvalidArgument for
    a log that has times or users.
    """
    if log.at_s is not None or log.users is not None:
        raise InvalidArgument.of("times", f"must be for a log without times and users, which {log.name} has")
    ordered = sorted(requests, key=lambda request: request.at_s)[: len(log.prompts)]
    times = np.asarray([request.at_s for request in ordered], np.float64)
    users = tuple(request.group for request in ordered)
    return PromptLog(log.name, log.prompts[: len(ordered)], times, users, composite=True)


def _read_json_lines(path: Path) -> PromptLog:
    lines = numbered_lines(path)
    first = next(lines, None)
    if first is None:
        return PromptLog(path.name, ())
    head = Line.of_json(path, *first)
    if head.has("format") and head.has("arrivals"):
        return _of_workload(path.name, load_workload(path))
    return _of_lines(path.name, [head, *(Line.of_json(path, number, text) for number, text in lines)])


def _of_workload(name: str, workload: Workload) -> PromptLog:
    arrivals = workload.arrivals
    return PromptLog(
        name,
        tuple(arrival.prompt for arrival in arrivals),
        np.asarray([arrival.at_s for arrival in arrivals], np.float64),
        tuple(arrival.tenant for arrival in arrivals),
        composite=workload.provenance.get("composite") is True,
    )


def _of_lines(name: str, lines: Sequence[Line]) -> PromptLog:
    if not lines:
        return PromptLog(name, ())
    prompt = _field(lines[0], PROMPTS) or PROMPTS[0]
    time, user = _field(lines[0], TIMES), _field(lines[0], USERS)
    return PromptLog(
        name,
        tuple(line.text(prompt) for line in lines),
        None if time is None else np.asarray([_seconds(line, time) for line in lines], np.float64),
        None if user is None else tuple(_users(lines, user)),
    )


def _field(line: Line, names: Sequence[str]) -> str | None:
    return next((name for name in names if line.has(name)), None)


def _users(lines: Sequence[Line], name: str) -> Iterator[str]:
    for line in lines:
        value = line.raw(name)
        if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
            raise line.wrong(name, f"must be a name or a number, got {json.dumps(value)[:80]}")
        yield str(value)


def _seconds(line: Line, name: str) -> float:
    """Seconds of the epoch; a time without a zone is in UTC."""
    value = line.raw(name)
    if name == "at_s" or not isinstance(value, str) or _is_number(value):
        return line.number(name)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise line.wrong(name, f"must be seconds or a time like 2022-08-20 09:00:00, got {value[:80]!r}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
