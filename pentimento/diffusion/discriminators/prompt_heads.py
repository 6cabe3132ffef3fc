"""What reads picture and prompt together: whether the light picture is as good as the heavy one would be.

DiffServe's confidence says whether a picture looks real, whatever was asked for. A head stands on the same network's
pooled features and on the prompt's retrieval embedding. A second one has the embedding alone and speaks before anything
is painted. Two files of a discriminator's directory: `prompt_head.json` and `prompt_head.safetensors`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from pentimento.diffusion.checkpoint import BadCheckpoint, read_json_object
from pentimento.diffusion.discriminators.scoring_network import bad_weights, whole_number
from pentimento.domain.errors import FailedPrecondition, InvalidArgument

HEAD_FILE, HEAD_WEIGHTS = "prompt_head.json", "prompt_head.safetensors"
VERSION = 1
_MAX_WIDTH = 8192
_MAX_POINTS = 1024


class Verdict(Enum):
    """What a prompt alone tells: `HARD` ones need not be painted light, of `EASY` ones no score need be asked."""

    UNSURE = "unsure"
    HARD = "hard"
    EASY = "easy"


@dataclass(frozen=True)
class Foresight:
    """The probability 0..1, before anything is painted, that the light picture will be as good, and what follows."""

    probability: float
    verdict: Verdict


@dataclass(frozen=True)
class HeadShape:
    """Widths of the network's pooled features, of the embedding, and of the layer between."""

    feature_width: int
    embedding_width: int
    hidden_width: int


class HeadNetwork(nn.Module):
    """Logits of 'as good': of features (n, feature_width) with unit embeddings (n, embedding_width), and of these
    alone."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        features, prompt, hidden = shape.feature_width, shape.embedding_width, shape.hidden_width
        # An embedding's numbers are about 1 / sqrt(width) each.
        self.scale = math.sqrt(prompt)
        self.norm = nn.LayerNorm(features)
        self.from_picture, self.seen = nn.Linear(features, hidden), nn.Linear(features, hidden)
        self.from_prompt, self.asked = nn.Linear(prompt, hidden), nn.Linear(prompt, hidden)
        self.together = nn.Linear(hidden, 1)
        self.before, self.foreseen = nn.Linear(prompt, hidden), nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(0.2)

    def forward(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """Return (n,): what is seen weighs by what was asked."""
        picture, prompt = self.norm(features), embeddings * self.scale
        both = self.from_picture(picture) + self.from_prompt(prompt) + self.seen(picture) * self.asked(prompt)
        found: Tensor = self.together(self.dropout(functional.gelu(both)))[:, 0]
        return found

    def foresee(self, embeddings: Tensor) -> Tensor:
        """Return (n,), by the prompts alone."""
        hidden = functional.gelu(self.before(embeddings * self.scale))
        found: Tensor = self.foreseen(self.dropout(hidden))[:, 0]
        return found


@dataclass(frozen=True)
class HeadRecord:
    """What `prompt_head.json` says. `slope` and `intercept` make a probability of a logit (Platt's line), those that
    begin with `prompt_` of the prompt's own. A prompt below `hard_below` is sure to be hard, one above `easy_above` to
    be easy. `threshold` is the recommended one, `deferral` f(t) as points (threshold, share) on held-back prompts."""

    feature_width: int
    embedding_width: int
    hidden_width: int
    encoder_digest: str
    slope: float = 1.0
    intercept: float = 0.0
    prompt_slope: float = 1.0
    prompt_intercept: float = 0.0
    hard_below: float = 0.0
    easy_above: float = 1.0
    threshold: float = 0.5
    deferral: tuple[tuple[float, float], ...] = ((0.0, 0.0), (1.0, 1.0))

    @property
    def shape(self) -> HeadShape:
        return HeadShape(self.feature_width, self.embedding_width, self.hidden_width)

    def as_json(self) -> dict[str, Any]:
        """Return it as the file has it."""
        return {"version": VERSION, **asdict(self)}


class PromptHead:
    """A loaded head. Embeddings are float32, unit length, of the encoder with `record.encoder_digest`."""

    def __init__(self, record: HeadRecord, network: HeadNetwork) -> None:
        self.record = record
        self._network = network.eval()

    def check(self, field: str, values: bytes, encoder_digest: str) -> NDArray[np.float32]:
        """Return a message's embedding. Raises FailedPrecondition OTHER_ENCODER for another encoder's, and
        InvalidArgument naming `field` for one that is not of its width or not finite."""
        if encoder_digest != self.record.encoder_digest:
            message = f"the prompt was embedded by {encoder_digest[:80]}, the discriminator reads those of "
            raise FailedPrecondition("OTHER_ENCODER", message + self.record.encoder_digest)
        if len(values) != 4 * self.record.embedding_width:
            wanted = f"must have {self.record.embedding_width} numbers of four bytes, has {len(values)} bytes"
            raise InvalidArgument.of(field, wanted)
        found = np.frombuffer(values, "<f4").astype(np.float32)
        if not np.isfinite(found).all():
            raise InvalidArgument.of(field, "must have finite numbers")
        return found

    def probabilities(self, features: Tensor, embeddings: Tensor) -> list[float]:
        """Return for each picture the calibrated probability 0..1 that it is as good as a heavy one would be."""
        return _line(self._network(features, embeddings), self.record.slope, self.record.intercept)

    @torch.inference_mode()
    def foresee(self, embeddings: Sequence[NDArray[np.float32]]) -> list[Foresight]:
        """Return what each prompt tells by itself."""
        logits = self._network.foresee(torch.from_numpy(np.stack(embeddings)))
        found = _line(logits, self.record.prompt_slope, self.record.prompt_intercept)
        return [Foresight(probability, self._verdict(probability)) for probability in found]

    def _verdict(self, probability: float) -> Verdict:
        if probability < self.record.hard_below:
            return Verdict.HARD
        return Verdict.EASY if probability > self.record.easy_above else Verdict.UNSURE


def _line(logits: Tensor, slope: float, intercept: float) -> list[float]:
    found: list[float] = torch.sigmoid(slope * logits.double() + intercept).tolist()
    return found


def head_files(directory: Path) -> tuple[Path, ...]:
    """Return the files of a directory's head; none where it has none. Raises BadCheckpoint for half of one."""
    files = directory / HEAD_FILE, directory / HEAD_WEIGHTS
    there = [file.is_file() for file in files]
    if any(there) and not all(there):
        raise BadCheckpoint(f"{directory}: must have both {HEAD_FILE} and {HEAD_WEIGHTS}, or neither")
    return files if all(there) else ()


def open_prompt_head(directory: Path, feature_width: int) -> PromptHead:
    """Return the head of a directory that has one. Raises BadCheckpoint with the file and the key for what is no head,
    or one of other features than `feature_width` numbers."""
    path = directory / HEAD_FILE
    record = read_record(path)
    if record.feature_width != feature_width:
        raise BadCheckpoint(f"{path}: feature_width must be the network's {feature_width}, got {record.feature_width}")
    network = HeadNetwork(record.shape)
    try:
        tensors = load_file(directory / HEAD_WEIGHTS)
        network.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except RuntimeError as error:
        raise bad_weights(directory / HEAD_WEIGHTS, error) from None
    if not all(bool(tensor.isfinite().all()) for tensor in network.state_dict().values()):
        raise BadCheckpoint(f"{directory / HEAD_WEIGHTS}: its weights give no usable probability")
    return PromptHead(record, network)


def read_record(path: Path) -> HeadRecord:
    """Return what a head's JSON file says. Raises BadCheckpoint with the file and the key."""
    document = read_json_object(path)
    if document.get("version") != VERSION:
        raise BadCheckpoint(f"{path}: version must be {VERSION}, got {document.get('version')!r:.80}")
    found: dict[str, Any] = {
        **{key: whole_number(path, document, key, 1, _MAX_WIDTH) for key in HeadShape.__dataclass_fields__},
        **{key: _finite(path, document, key) for key in ("slope", "intercept", "prompt_slope", "prompt_intercept")},
        **{key: _share(path, document, key) for key in ("hard_below", "easy_above", "threshold")},
        "encoder_digest": document.get("encoder_digest"),
        "deferral": _deferral(path, document),
    }
    if not isinstance(found["encoder_digest"], str) or not found["encoder_digest"]:
        message = f"encoder_digest must say whose embeddings it reads, got {found['encoder_digest']!r:.80}"
        raise BadCheckpoint(f"{path}: {message}")
    if found["hard_below"] > found["easy_above"]:
        raise BadCheckpoint(f"{path}: hard_below must not be above easy_above")
    return HeadRecord(**found)


def _finite(path: Path, document: Mapping[str, Any], key: str) -> float:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadCheckpoint(f"{path}: {key} must be a finite number, got {value!r:.80}")
    return float(value)


def _share(path: Path, document: Mapping[str, Any], key: str) -> float:
    value = _finite(path, document, key)
    if not 0.0 <= value <= 1.0:
        raise BadCheckpoint(f"{path}: {key} must be between 0 and 1, got {value}")
    return value


def _deferral(path: Path, document: Mapping[str, Any]) -> tuple[tuple[float, float], ...]:
    points = document.get("deferral")
    if not isinstance(points, list) or not 2 <= len(points) <= _MAX_POINTS or not all(map(_is_point, points)):
        message = f"{path}: deferral must be 2 to {_MAX_POINTS} points [threshold, share] within 0 and 1"
        raise BadCheckpoint(message)
    found = tuple((float(threshold), float(share)) for threshold, share in points)
    for column in zip(*found, strict=True):
        if list(column) != sorted(column):
            raise BadCheckpoint(f"{path}: deferral must ascend in thresholds and in shares")
    return found


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(map(_is_share, point))


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0
