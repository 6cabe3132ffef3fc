"""Write a report as JSON. A value without a number (no request at all) is null, and derived shares are added to the
fields. It is an output only; `pentimento.files.json_values` reads values back."""

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

from lab.runs.report import Report

FORMAT = 1


def as_json(report: Report) -> str:
    """Return everything but single latencies, by field names, with the derived shares."""
    document = {"format": FORMAT, **_plain(report)}
    del document["latencies_s"]
    document["device_s_per_answer"] = _plain(report.device_s_per_answer)
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return plain | {
            name: _plain(getattr(value, name)) for name in ("violations", "slo_attainment") if hasattr(value, name)
        }
    return value
