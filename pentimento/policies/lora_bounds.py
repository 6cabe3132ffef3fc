"""How late the LoRAs of one directory may come: what `pentimento bench lora-bound` writes, and workers read.

    {"format": 1, "bounds": [{"lora": "tiny-lora-neon", "lora_digest": "sha256:…", "model": "tiny-heavy",
                              "model_digest": "sha256:…", "latest_start_fraction": 0.0, …}]}

A bound belongs to one LoRA of one model, by their digests. What has no bound is waited for before the first step.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pentimento.domain.errors import InvalidArgument
from pentimento.files.json_values import ValueRange, from_json, to_json
from pentimento.policies.lora_lateness import LateSample, allows
from pentimento.policies.selector_profiling import ThresholdRule

FORMAT = 1
DIGITS = 4

Count = Annotated[int, ValueRange(1)]
Share = Annotated[float, ValueRange(0.0, 1.0)]


@dataclass(frozen=True)
class LateSteps:
    """What was measured of one K: pictures, how many of them were kept, of cosine and strength the mean and the lowest,
    and the mean of `alike`; see `lora_lateness.LateSample`. `allowed` says which rules allow this K by itself."""

    steps: Count
    picture_count: Count
    kept_count: int
    mean_cosine: float
    lowest_cosine: float
    mean_strength: float
    lowest_strength: float
    mean_alike: float
    allowed: tuple[ThresholdRule, ...] = ()


@dataclass(frozen=True)
class LoraBound:
    """The share of the schedule that may run before the LoRA takes effect in the model, by `rule`, at weights between
    -1 and 1; the rest says how it was found: `step_count` is N of the K in `measured`, `alike_steps` what Katz's rule
    would have made of the same pictures."""

    lora_digest: str
    model_digest: str
    latest_start_fraction: Share
    lora: str = ""
    model: str = ""
    rule: ThresholdRule | None = None
    step_count: int = 0
    alike_steps: int = 0
    measured: tuple[LateSteps, ...] = ()
    prompts: str = ""
    build_version: str = ""
    measured_at: str = ""


def late_steps(steps: int, samples: Sequence[LateSample]) -> LateSteps:
    """Return what the file says of the pictures of one K."""
    cosines, strengths = [one.cosine for one in samples], [one.strength for one in samples]
    return LateSteps(
        steps=steps,
        picture_count=len(samples),
        kept_count=sum(one.is_kept for one in samples),
        mean_cosine=round(fmean(cosines), DIGITS),
        lowest_cosine=round(min(cosines), DIGITS),
        mean_strength=round(fmean(strengths), DIGITS),
        lowest_strength=round(min(strengths), DIGITS),
        mean_alike=round(fmean(one.alike for one in samples), DIGITS),
        allowed=tuple(rule for rule in ThresholdRule if allows(samples, rule)),
    )


def bounds_to_json(bounds: Iterable[LoraBound]) -> str:
    """Return the text of the file."""
    return json.dumps({"format": FORMAT, "bounds": [to_json(bound) for bound in bounds]}, indent=1) + "\n"


def bounds_from_json(text: str) -> tuple[LoraBound, ...]:
    """Return the file's bounds. Raises InvalidArgument naming the line of what is no JSON, or the field that is
    missing, unknown, of another type or outside its limits; or two bounds of one LoRA and model."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument.of("lora_bounds", f"must be JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidArgument.of("lora_bounds.format", f"must be {FORMAT}")
    found = from_json(tuple[LoraBound, ...], document.get("bounds"), "lora_bounds.bounds")
    keys: set[tuple[str, str]] = set()
    for index, bound in enumerate(found):
        key = (bound.lora_digest, bound.model_digest)
        if key in keys:
            raise InvalidArgument.of(f"lora_bounds.bounds[{index}]", "is there twice for its LoRA and model")
        keys.add(key)
    return found


def read_lora_bounds(path: Path) -> tuple[LoraBound, ...]:
    """Return the bounds of a file. Raises InvalidArgument naming it and what is wrong with it."""
    try:
        return bounds_from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument.of("lora_bounds", f"{path}: cannot be read: {error}") from None
    except InvalidArgument as error:
        raise InvalidArgument.of("lora_bounds", f"{path}: {error.message}") from None


def merged(old: Iterable[LoraBound], new: Iterable[LoraBound]) -> tuple[LoraBound, ...]:
    """Return the new bounds and the old ones of other LoRAs or models, by the names of model and LoRA."""
    found: dict[tuple[str, str], Any] = {(bound.lora_digest, bound.model_digest): bound for bound in (*old, *new)}
    return tuple(sorted(found.values(), key=lambda bound: (bound.model, bound.lora)))
