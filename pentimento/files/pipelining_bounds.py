"""From which step on ControlNets' residuals resemble those of the step before, as measured; and the file of it.

    {"format": 1, "bounds": [{"controlnet": "tiny-controlnet-edges", "controlnet_digest": "sha256:…", "model_digest":
     "sha256:…", "step_count": 50, "first_step": 4}]}

`first_step` is 0 where they never do.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pentimento.domain.adapters import PipeliningBound
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.files.json_values import ValueRange, from_json, to_json

FORMAT = 1


@dataclass(frozen=True)
class MeasuredBound:
    """One measurement: with the ControlNet on that model, in schedules of `step_count` steps."""

    controlnet: str
    controlnet_digest: str
    model_digest: str
    step_count: Annotated[int, ValueRange(1, 10_000)]
    first_step: Annotated[int, ValueRange(0, 9_999)]


@dataclass(frozen=True)
class _File:
    format: int
    bounds: tuple[MeasuredBound, ...]


def read_pipelining_bounds(path: Path | None) -> dict[str, tuple[PipeliningBound, ...]]:
    """Return the bounds of each ControlNet by its digest, of fewer steps first; on several models the latest step.
    Nothing without a file. Raises NotFound, FailedPrecondition for one of another format, InvalidArgument that names
    the field."""
    found: dict[str, dict[int, int]] = {}
    for bound in _read(path).bounds if path is not None else ():
        if bound.first_step >= bound.step_count:
            limit = f"must be below step_count, {bound.step_count}, got {bound.first_step}"
            raise InvalidArgument.of(f"{path}: bounds.first_step", limit)
        steps = found.setdefault(bound.controlnet_digest, {})
        before = steps.get(bound.step_count, bound.first_step)
        steps[bound.step_count] = max(before, bound.first_step) if before and bound.first_step else 0
    return {
        digest: tuple(PipeliningBound(count, steps[count]) for count in sorted(steps))
        for digest, steps in found.items()
    }


def write_pipelining_bounds(path: Path, bounds: Sequence[MeasuredBound]) -> None:
    """Write the file."""
    path.write_text(json.dumps(to_json(_File(FORMAT, tuple(bounds))), indent=1) + "\n", encoding="utf-8")


def _read(path: Path) -> _File:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise NotFound("FILE_MISSING", f"{path}: there is no such file") from None
    except (ValueError, RecursionError):
        raise FailedPrecondition("BAD_FILE", f"{path}: must be JSON") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise FailedPrecondition("BAD_FILE", f"{path}: must be a file of pipelining bounds of format {FORMAT}")
    return from_json(_File, found, f"{path}")
