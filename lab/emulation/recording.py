"""Read and write a recording: images of real models for a fixed set of prompts, with qualities and costs.

A folder holds `recording.json`, which mirrors the classes below, a profile for each model
(`pentimento.profiles.costs`), and the named images. Emulated devices answer with them; the simulator uses qualities
and confidences. Needs only the standard library, so that sixteen emulated devices fit a small machine.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, PentimentoError
from pentimento.files.json_values import ValueRange, from_json, to_json
from pentimento.profiles.costs import Cost, Count, ModelProfile, costs_from_json

DOCUMENT = "recording.json"
FORMAT, VERSION = "pentimento-recording", 2
LIMIT_BYTES = 300_000  # limit of a folder: recordings are committed
PICTURE_NAME = re.compile(r"[a-z0-9-]+-[0-9]{3}\.png")
PROFILE_NAME = re.compile(r"[a-z0-9-]+\.profile\.json")

Share = Annotated[float, ValueRange(0.0, 1.0)]


@dataclass(frozen=True)
class Prompt:
    text: str
    seed: int


@dataclass(frozen=True)
class RecordedImage:
    """The result for a prompt. Qualities belong to these pixels; `file` is None if only the qualities were kept."""

    clip_score: Annotated[float, ValueRange(-1.0, 1.0)]  # cosine of image and prompt by the dual encoder
    attributes_seen: Share | None  # share of the prompt's attributes that a classifier finds
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
    guidance_scale: Annotated[float, ValueRange(0.0)]
    profile: str
    load: Cost
    pictures: tuple[RecordedImage, ...]  # in the order of the prompts


@dataclass(frozen=True)
class RecordedDiscriminator:
    """`score` holds the cost of scoring a batch of 1, 2, 4, … images, ascending."""

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
        """Return the index of the recorded prompt for a request: its own if recorded, else one chosen by prompt and
        seed. It is the same for all models, so that light and heavy images of one request belong together."""
        known = self._numbers.get(prompt)
        return int(quantile_of(prompt, seed) * len(self.prompts)) if known is None else known

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {prompt.text: number for number, prompt in enumerate(self.prompts)}


def quantile_of(prompt: str, seed: int) -> float:
    """Return a pseudo-random number in [0, 1) that depends only on prompt and seed."""
    digest = hashlib.sha256(f"{seed}\0{prompt}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def write_recording(folder: Path, recording: Recording, files: Mapping[str, bytes]) -> None:
    """Write a recording; `files` are the images and profiles by name. Replaces an earlier recording in the folder.
    Raises FailedPrecondition if it is too large to commit."""
    document = (json.dumps(to_json(recording), separators=(",", ":"), ensure_ascii=False) + "\n").encode()
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
        recording = from_json(Recording, document)
        for problem in _contradictions(recording):
            raise ValueError(problem)
    except (InvalidArgument, ValueError, RecursionError) as error:
        raise FailedPrecondition("BAD_RECORDING", f"{path}: {error}") from None
    return recording


def read_recorded_image(folder: Path, picture: RecordedImage) -> bytes:
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
        profile = costs_from_json(path.read_text())
    except (PentimentoError, UnicodeDecodeError) as error:
        raise FailedPrecondition("BAD_RECORDING", f"{path}: {error}") from None
    if profile.model_digest != model.digest:
        raise FailedPrecondition("BAD_RECORDING", f"{path}: of {profile.model_digest}, recorded was {model.digest}")
    return profile


def _check_version(document: object) -> None:
    found = (document.get("format"), document.get("version")) if isinstance(document, dict) else (None, None)
    if found[0] != FORMAT:
        raise ValueError(f"format: expected {FORMAT!r}, not {found[0]!r}")
    if found[1] != VERSION:
        raise ValueError(f"version: expected {VERSION}, not {found[1]!r}")


def _contradictions(recording: Recording) -> Iterator[str]:
    """Return contradictions between fields."""
    for m, model in enumerate(recording.models):
        if len(model.pictures) != len(recording.prompts):
            yield f"models[{m}].pictures: {len(model.pictures)} of {len(recording.prompts)} prompts"
        if not PROFILE_NAME.fullmatch(model.profile):
            yield f"models[{m}].profile: expected a name like model.profile.json, not {model.profile!r}"
        for p, picture in enumerate(model.pictures):
            if picture.file is not None and not PICTURE_NAME.fullmatch(picture.file):
                yield f"models[{m}].pictures[{p}].file: expected a name like model-000.png, not {picture.file!r}"
            if picture.file is not None and picture.sha256 is None:
                yield f"models[{m}].pictures[{p}].sha256: missing"
    if not recording.prompts:
        yield "prompts: expected one at least"
    if recording.discriminator is not None:
        batches = [score.batch_size for score in recording.discriminator.score]
        if batches[:1] != [1] or batches != sorted(set(batches)):
            yield f"discriminator.score: expected ascending batches from 1, not {batches}"
