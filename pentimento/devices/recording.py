"""A recording: what real models made of a fixed set of prompts, how good it was, and what it cost.

A folder of `recording.json`, which mirrors the classes below, a profile for each model (`pentimento.devices.profile`)
and the pictures that are named. Emulated devices answer with them, the simulator takes qualities and confidences from
them. Needs the standard library alone, so that sixteen emulated devices fit a small machine.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pentimento.devices.profile import Cost, ModelProfile, profile_from_json
from pentimento.domain.errors import FailedPrecondition, NotFound, PentimentoError

DOCUMENT = "recording.json"
FORMAT, VERSION = "pentimento-recording", 2
LIMIT_BYTES = 300_000  # of a folder: recordings are committed
PICTURE_NAME = re.compile(r"[a-z0-9-]+-[0-9]{3}\.png")
PROFILE_NAME = re.compile(r"[a-z0-9-]+\.profile\.json")


@dataclass(frozen=True)
class ValueRange:
    low: float
    high: float = math.inf


Count = Annotated[int, ValueRange(1)]
Share = Annotated[float, ValueRange(0.0, 1.0)]


@dataclass(frozen=True)
class Prompt:
    text: str
    seed: int


@dataclass(frozen=True)
class RecordedPicture:
    """What came of a prompt. Qualities are of the very pixels; `file` is None where only they were kept."""

    clip_score: Annotated[float, ValueRange(-1.0, 1.0)]  # cosine of picture and prompt by the dual encoder
    attributes_seen: Share | None  # of those the prompt asks for, by the judge
    confidence: Share | None  # of the cascade's discriminator
    file: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class RecordedModel:
    """`profile` is the name of its profile's file; `load` the cost of a cold load."""

    name: str
    digest: str
    family: str
    width_px: Count
    height_px: Count
    steps: Count
    guidance_scale: float
    profile: str
    load: Cost
    pictures: tuple[RecordedPicture, ...]  # in the order of the prompts


@dataclass(frozen=True)
class RecordedDiscriminator:
    """`score` is the cost of scoring 1, 2, 4, … pictures together, by batch, ascending."""

    name: str
    digest: str
    score: tuple[ScoreCost, ...]


@dataclass(frozen=True)
class ScoreCost:
    batch_size: Count
    cost: Cost


@dataclass(frozen=True)
class Recording:
    format: str
    version: int
    recorded_at: str
    commit: str
    machine: dict[str, Any]
    device: str
    threads: Count
    prompts: tuple[Prompt, ...]
    models: tuple[RecordedModel, ...]
    discriminator: RecordedDiscriminator | None = None

    def model(self, name: str) -> RecordedModel:
        for model in self.models:
            if model.name == name:
                return model
        raise NotFound("NOT_RECORDED", f"model {name!r}: recorded are {', '.join(m.name for m in self.models)}")

    def index_of(self, prompt: str, seed: int) -> int:
        """Which of the recorded prompts stands for a request: its own where it was recorded, else one that prompt and
        seed choose. The same for all models, so that a light and a heavy picture of one request belong together."""
        known = self._numbers.get(prompt)
        return int(quantile_of(prompt, seed) * len(self.prompts)) if known is None else known

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {prompt.text: number for number, prompt in enumerate(self.prompts)}


def quantile_of(prompt: str, seed: int) -> float:
    """A number in 0..1 that looks drawn, exclusive of 1; the same whenever and wherever it is asked for."""
    digest = hashlib.sha256(f"{seed}\0{prompt}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def write_recording(folder: Path, recording: Recording, files: Mapping[str, bytes]) -> None:
    """`files` are the pictures and profiles by name. Replaces what the folder held of an earlier recording.
    FailedPrecondition when it would be too large to commit."""
    document = (json.dumps(_as_json(recording), separators=(",", ":"), ensure_ascii=False) + "\n").encode()
    size = len(document) + sum(map(len, files.values()))
    if size > LIMIT_BYTES:
        message = f"{folder}: {size} bytes, at most {LIMIT_BYTES} are committed; keep fewer pictures"
        raise FailedPrecondition("RECORDING_TOO_LARGE", message)
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (*folder.glob("*-[0-9][0-9][0-9].png"), *folder.glob("*.profile.json")):
        stale.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / DOCUMENT).write_bytes(document)


def read_recording(folder: Path) -> Recording:
    """NotFound without a document, FailedPrecondition for one that is wrong; the message names file and field."""
    path = folder / DOCUMENT
    if not path.is_file():
        raise NotFound("FILE_MISSING", f"{path}: not there; expected a recording")
    try:
        document = json.loads(path.read_bytes())
        _check_version(document)
        recording: Recording = _parse(Recording, document, "")
        for problem in _contradictions(recording):
            raise _Wrong(problem)
    except (ValueError, RecursionError) as error:
        raise FailedPrecondition("BAD_RECORDING", f"{path}: {error}") from None
    return recording


def read_picture(folder: Path, picture: RecordedPicture) -> bytes:
    """The PNG that was recorded. NotFound where none was kept or it is gone; FailedPrecondition if it is another."""
    if picture.file is None:
        raise NotFound("NOT_RECORDED", f"{folder}: of this picture only the qualities were kept")
    path = folder / picture.file
    if not path.is_file():
        raise NotFound("FILE_MISSING", f"{path}: not there; expected a recorded picture")
    png = path.read_bytes()
    if hashlib.sha256(png).hexdigest() != picture.sha256:
        raise FailedPrecondition("BAD_RECORDING", f"{path}: not the picture that was recorded")
    return png


def read_profile(folder: Path, model: RecordedModel) -> ModelProfile:
    """NotFound when it is gone; FailedPrecondition for one that is wrong, or of another model; both name the file."""
    path = folder / model.profile
    if not path.is_file():
        raise NotFound("FILE_MISSING", f"{path}: not there; expected a recorded profile")
    try:
        profile = profile_from_json(path.read_text())
    except (PentimentoError, UnicodeDecodeError) as error:
        raise FailedPrecondition("BAD_RECORDING", f"{path}: {error}") from None
    if profile.model_digest != model.digest:
        raise FailedPrecondition("BAD_RECORDING", f"{path}: of {profile.model_digest}, recorded was {model.digest}")
    return profile


class _Wrong(ValueError):
    """A field that is not what it should be; the message begins with its name."""


def _check_version(document: object) -> None:
    found = (document.get("format"), document.get("version")) if isinstance(document, dict) else (None, None)
    if found[0] != FORMAT:
        raise _Wrong(f"format: expected {FORMAT!r}, not {found[0]!r}")
    if found[1] != VERSION:
        raise _Wrong(f"version: expected {VERSION}, not {found[1]!r}")


def _contradictions(recording: Recording) -> Iterator[str]:
    """What no field can tell alone."""
    for m, model in enumerate(recording.models):
        if len(model.pictures) != len(recording.prompts):
            yield f"models[{m}].pictures: {len(model.pictures)} of {len(recording.prompts)} prompts"
        if not PROFILE_NAME.fullmatch(model.profile):
            yield f"models[{m}].profile: expected a name like model.profile.json, not {model.profile!r}"
        yield from _impossible(model.load, f"models[{m}].load")
        for p, picture in enumerate(model.pictures):
            if picture.file is not None and not PICTURE_NAME.fullmatch(picture.file):
                yield f"models[{m}].pictures[{p}].file: expected a name like model-000.png, not {picture.file!r}"
            if picture.file is not None and picture.sha256 is None:
                yield f"models[{m}].pictures[{p}].sha256: missing"
    if not recording.prompts:
        yield "prompts: expected one at least"
    if recording.discriminator is not None:
        yield from _contradictions_of_scores(recording.discriminator.score)


def _contradictions_of_scores(scores: tuple[ScoreCost, ...]) -> Iterator[str]:
    batches = [score.batch_size for score in scores]
    if batches[:1] != [1] or batches != sorted(set(batches)):
        yield f"discriminator.score: expected ascending batches from 1, not {batches}"
    for index, score in enumerate(scores):
        yield from _impossible(score.cost, f"discriminator.score[{index}].cost")


def _impossible(cost: Cost, where: str) -> Iterator[str]:
    if cost.mean_s < 0 or cost.variance_s2 < 0 or cost.sample_count < 1:
        yield f"{where}: expected seconds and a variance of at least 0 from 1 sample or more, not {cost}"


def _as_json(value: object) -> Any:
    """Dataclasses as objects without the fields that are None."""
    if is_dataclass(value) and not isinstance(value, type):
        named = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: _as_json(item) for name, item in named if item is not None}
    return [_as_json(item) for item in value] if isinstance(value, tuple) else value


def _parse(kind: Any, value: object, where: str) -> Any:
    """A JSON value as what a field is declared to be."""
    if get_origin(kind) is Annotated:
        base, bounds = get_args(kind)
        found = _parse(base, value, where)
        if not bounds.low <= found <= bounds.high:
            raise _Wrong(f"{where}: expected {bounds.low:g} to {bounds.high:g}, not {value!r}")
        return found
    if _optional(kind):
        return None if value is None else _parse(get_args(kind)[0], value, where)
    if get_origin(kind) is tuple:
        items = _expect(list, value, where, "a list")
        return tuple(_parse(get_args(kind)[0], item, f"{where}[{number}]") for number, item in enumerate(items))
    if get_origin(kind) is dict:
        return _expect(dict, value, where, "an object")
    if is_dataclass(kind):
        return _parse_object(kind, value, where)
    return _parse_plain(kind, value, where)


def _optional(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType) and get_args(kind)[1:] == (NoneType,)


def _parse_object(kind: Any, value: object, where: str) -> Any:
    given = _expect(dict, value, where, "an object")
    hints = get_type_hints(kind, include_extras=True)
    prefix = f"{where}." if where else ""
    if foreign := sorted(given.keys() - hints.keys()):
        raise _Wrong(f"{prefix}{foreign[0]}: unknown field")
    for name, hint in hints.items():
        if name not in given and not _optional(hint):
            raise _Wrong(f"{prefix}{name}: missing")
    return kind(**{name: _parse(hint, given.get(name), f"{prefix}{name}") for name, hint in hints.items()})


def _parse_plain(kind: Any, value: object, where: str) -> Any:
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _Wrong(f"{where}: expected a finite number, not {value!r}")
        return float(value)
    if kind is int and isinstance(value, bool):
        raise _Wrong(f"{where}: expected a whole number, not {value!r}")
    return _expect(kind, value, where, {int: "a whole number", str: "a text"}[kind])


def _expect(kind: type, value: object, where: str, named: str) -> Any:
    if not isinstance(value, kind):
        raise _Wrong(f"{where}: expected {named}, not {str(value)[:60]!r}" if where else f"expected {named}")
    return value
