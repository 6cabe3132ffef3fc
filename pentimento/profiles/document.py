"""Define the files of profiles, with one format for all kinds.

    {"format": 2, "profiles": [
    {"kind": "steps",
     "of": {"model": "tiny-heavy", "model_digest": "sha256:…", "encoder": "tiny-clip", "encoder_digest": "sha256:…"},
     "conditions": {"step_count": 50, "scheduler": "ddim", "guidance_scale": 1.5},
     "asked": {"alpha": 0.95, "rule": "lower_bound", "quality": "clip_score"},
     "measured": {"prompts": "prompts.txt", "build": "0.1.0", "at": "2026-11-29T11:00:00Z"},
     "rows": [
      {"at": {"first_step": 3, "taken_count": 19}, "count": 100, "kept": 99, "sums": {"quality": [4.1, 0.21]},
       "allowed": {"lower_bound": 22}, "figures": {"share": 0.9948}}
     ]}
    ]}

`pentimento profile` writes such files.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cached_property
from typing import Annotated, Any

from pentimento.domain.adapters import AdapterKind
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import GenerationSpec, Scheduler
from pentimento.files.json_values import ValueRange, from_json, parsed_json, to_json
from pentimento.profiles.rules import Tally, ThresholdRule

FORMAT = 2
DIGITS = 4

Count = Annotated[int, ValueRange(0, 1_000_000)]
Share = Annotated[float, ValueRange(0.0, 1.0)]
Number = Annotated[float, ValueRange(-1e18, 1e18)]


class ProfileKind(Enum):
    """Name the kinds of profiles: costs, latents and images to reuse, skipped steps, steps that reuse deep features,
    hand-overs, LoRAs, residuals."""

    COST = "cost"
    REUSE = "reuse"
    STEPS = "steps"
    FEATURES = "features"
    HANDOVER = "handover"
    LORA = "lora"
    PIPELINING = "pipelining"


class ReuseKind(Enum):
    """Name the reused start: a model's own latents, or the images of another model."""

    LATENTS = "latents"
    IMAGES = "images"


@dataclass(frozen=True)
class MeasuredAdapter:
    """Identify an adapter by digest and scale; a ControlNet also by its part of the schedule (0..1)."""

    digest: str
    scale: float = 1.0
    kind: AdapterKind = AdapterKind.LORA
    start_fraction: float = 0.0
    end_fraction: float = 1.0
    name: str = field(default="", compare=False)


@dataclass(frozen=True)
class ProfiledModel:
    """Identify the measured model. `reference` is the model it was compared with: the large model for reused images,
    the earlier model for a hand-over."""

    model: str
    model_digest: str
    reference: str = ""
    reference_digest: str = ""
    encoder: str = ""
    encoder_digest: str = ""
    adapters: tuple[MeasuredAdapter, ...] = ()


@dataclass(frozen=True)
class ProfileConditions:
    """Describe how the images were generated. LoRAs took effect at `patch_step`."""

    step_count: Annotated[int, ValueRange(1, 100_000)]
    model_step_count: Count = 0
    scheduler: Scheduler | None = None
    guidance_scale: Annotated[float, ValueRange(0.0)] | None = None
    patch_step: Count = 0
    start: ReuseKind | None = None


@dataclass(frozen=True)
class ProfilePromise:
    """Hold the requested share `alpha` of the quality, and the profile's own rule."""

    alpha: Share = 1.0
    rule: ThresholdRule = ThresholdRule.LOWER_BOUND
    quality: str = ""


@dataclass(frozen=True)
class ProfileSource:
    """Describe the source of the numbers, with figures of the whole measurement."""

    prompts: str = ""
    build: str = ""
    at: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ProfileRow:
    """Sum up the samples at one place: their number, the number that keep the quality, and the `sums` of their margins.

    `allowed` has the value that each rule allows by this row only; a rule that allows nothing is missing. `figures` are
    for readers. A row without `sums` cannot be continued.
    """

    at: Mapping[str, Number]
    count: Annotated[int, ValueRange(1, 1_000_000)] = 1
    kept: int = 0
    sums: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    allowed: Mapping[str, Number] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)

    def by(self, rule: ThresholdRule) -> float | None:
        """Return the value that a rule allows; None for nothing."""
        return self.allowed.get(rule.value)

    def place(self, name: str) -> int:
        """Return a whole number of `at`; 0 if it is not stated."""
        return int(self.at.get(name, 0))


@dataclass(frozen=True)
class Profile:
    """Hold one measurement of one model."""

    kind: ProfileKind
    of: ProfiledModel
    conditions: ProfileConditions
    asked: ProfilePromise = field(default_factory=ProfilePromise)
    measured: ProfileSource = field(default_factory=ProfileSource)
    rows: tuple[ProfileRow, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Return the subject of the profile: two profiles with one key contradict each other."""
        # One pair of models may have tables for several shares of the quality.
        reuse = (self.of.encoder_digest, self.asked.alpha) if self.kind is ProfileKind.REUSE else ()
        of = (self.of.model_digest, self.of.reference_digest, *reuse, self.of.adapters)
        return (self.kind, *of, self.conditions.scheduler, self.conditions.start)

    @cached_property
    def derived(self) -> dict[object, Any]:
        """Return a cache of permissions: every request reads them several times."""
        return {}


def row_of(
    at: Mapping[str, float], found: Tally, value: float, figures: Mapping[str, float] | None = None
) -> ProfileRow:
    """Return the row of a tally; every rule that it satisfies allows `value`."""
    allowed = {rule.value: value for rule in ThresholdRule if found.allows(rule)}
    return ProfileRow(at, found.count, found.kept, found.sums, allowed, figures or {})


def adapters_of(spec: GenerationSpec) -> tuple[MeasuredAdapter, ...]:
    """Return the LoRAs, ControlNets and IP-Adapters of a request in their order for comparison."""
    loras = [MeasuredAdapter(lora.digest, lora.scale) for lora in spec.loras]
    controlnets = [
        MeasuredAdapter(
            net.digest, net.conditioning_scale, AdapterKind.CONTROLNET, net.start_fraction, net.end_fraction
        )
        for net in spec.controlnets
    ]
    images = [MeasuredAdapter(one.digest, one.scale, AdapterKind.IP_ADAPTER) for one in spec.image_prompts]
    return ordered(loras + controlnets + images)


def ordered(adapters: Iterable[MeasuredAdapter]) -> tuple[MeasuredAdapter, ...]:
    """Return adapters in their order for comparison: their effects add up, so a request may name them in any order."""
    return tuple(sorted(adapters, key=lambda one: (one.kind.value, one.digest, one.scale, one.start_fraction)))


def profiles_to_json(*profiles: Profile) -> str:
    """Return the text of a file of profiles."""
    return document_to_json(map(profile_entry, profiles))


def profile_entry(profile: Profile) -> dict[str, Any]:
    """Return the file entry of a profile."""
    return _stated(profile)


def document_to_json(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a file of entries, with a line for each row."""
    return f'{{"format": {FORMAT}, "profiles": [\n' + ",\n".join(map(_text, entries)) + "\n]}\n"


def _text(entry: Mapping[str, Any]) -> str:
    lines = []
    for name, value in entry.items():
        rows = value if isinstance(value, list) and value and isinstance(value[0], dict) else None
        shown = ",\n  ".join(map(json.dumps, rows)) if rows is not None else json.dumps(value)
        lines.append(f'"{name}": [\n  {shown}\n ]' if rows is not None else f'"{name}": {shown}')
    return "{" + ",\n ".join(lines) + "}"


def _stated(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults."""
    found = {}
    for one in fields(value):
        item = getattr(value, one.name)
        if item != (one.default if one.default_factory is MISSING else one.default_factory()):
            found[one.name] = _plain(item)
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return _stated(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return to_json(value)


def profiles_from_json(text: str, where: str = "") -> tuple[Profile, ...]:
    """Return the profiles of a file's text without costs, not yet checked by the rules of their kind.

    Raises InvalidArgument naming the line with invalid JSON, or the field below `where` that is missing, unknown, of
    another type or outside its limits.
    """
    found = entries_of(text, None, where)
    return tuple(from_json(Profile, entry, place) for place, entry in found.items())


def entries_of(text: str, kind: ProfileKind | None, where: str = "") -> dict[str, Any]:
    """Return the entries of a file's text by their place: the costs if `kind` is COST, else the others.

    Raises InvalidArgument for a text that is not a file of profiles.
    """
    document = parsed_json(text, where or "profiles")
    number = document.pop("format", None)
    if number != FORMAT:
        limit = f"must be {FORMAT}, got {number!r:.20}: `pentimento profile` measures older profiles again"
        raise InvalidArgument.of(below(where, "format"), limit)
    place = below(where, "profiles")
    entries = document.pop("profiles", None)
    if document:
        raise InvalidArgument.of(below(where, min(document)), "is not known")
    found = {}
    for index, entry in enumerate(from_json(tuple[Any, ...], entries, place)):
        is_cost = isinstance(entry, dict) and entry.get("kind") == ProfileKind.COST.value
        if is_cost is (kind is ProfileKind.COST):
            found[f"{place}[{index}]"] = entry
    return found


def below(where: str, name: str) -> str:
    """Return the path of the field `name` below `where`."""
    return f"{where}.{name}" if where else name
