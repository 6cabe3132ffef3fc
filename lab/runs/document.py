"""A report as JSON. What is not a number there (no request at all) is null, and derived shares stand beside the fields:
it is read by others, and never back as the values that it was, which `pentimento.files.json_values` is for.
"""

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

from lab.runs.report import Report

FORMAT = 1


def as_json(report: Report) -> str:
    """Everything but the single latencies; keys as the fields are called, and the derived shares beside them."""
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
