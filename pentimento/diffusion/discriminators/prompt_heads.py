"""Score image and prompt together: whether the light image is as good as the heavy one would be.

DiffServe's confidence scores whether an image looks real, regardless of the prompt. A head reads the same network's
pooled features and the prompt's retrieval embedding. A second one reads only the embedding and scores before any image
is generated. Two files of a discriminator's directory: `prompt_head.json` and `prompt_head.safetensors`.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from pentimento.diffusion.checkpoint import BadCheckpoint, read_json_object
from pentimento.diffusion.discriminator_files import HEAD_FILE, HEAD_WEIGHTS
from pentimento.diffusion.discriminators.scoring_network import bad_weights, whole_number
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.foresight import DEFAULT_THRESHOLD, PromptForesight, Verdict
from pentimento.files.discriminator_records import measured_auroc

VERSION = 2
_MAX_WIDTH = 8192
_MAX_POINTS = 1024
_WIDTHS = ("feature_width", "embedding_width", "hidden_width")


@dataclass(frozen=True)
class HeadShape:
    """Hold the widths of the network's pooled features, of the embedding, and of the hidden layer over the
    embedding."""

    feature_width: int
    embedding_width: int
    hidden_width: int


class HeadNetwork(nn.Module):
    """Compute logits of 'as good' from features (n, feature_width) and unit embeddings (n, embedding_width), or from
    the embeddings only.

    The first is the second plus the image's part, which begins at 0: how far the embedding that is read from the
    features (`read`, fitted to images with captions) agrees with the prompt's. A few thousand images are too few to
    learn more than the weight of this part."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        features, prompt, hidden = shape.feature_width, shape.embedding_width, shape.hidden_width
        # An embedding's numbers are about 1 / sqrt(width) each.
        self.scale = math.sqrt(prompt)
        self.norm = nn.LayerNorm(features, elementwise_affine=False)
        self.read, self.agreed = nn.Linear(features, prompt), nn.Linear(1, 1)
        self.before, self.foreseen = nn.Linear(prompt, hidden), nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(0.3)
        nn.init.zeros_(self.agreed.weight)
        nn.init.zeros_(self.agreed.bias)

    def forward(self, features: Tensor, prompts: Tensor) -> Tensor:
        """Return the logits (n,) of images with their prompts."""
        cosines = (functional.normalize(self.read(self.norm(features)), dim=1) * prompts).sum(dim=1, keepdim=True)
        # Cosines of images and prompts differ by about a quarter.
        found: Tensor = self.foresee(prompts) + self.agreed(4.0 * cosines)[:, 0]
        return found

    def foresee(self, prompts: Tensor) -> Tensor:
        """Return the logits (n,) of the prompts only."""
        found: Tensor = self.foreseen(self.dropout(functional.gelu(self.before(prompts * self.scale))))[:, 0]
        return found


@dataclass(frozen=True)
class HeadRecord:
    """Hold the contents of `prompt_head.json`. `slope` and `intercept` turn a logit into a probability (Platt's line);
    `prompt_slope` and `prompt_intercept` do so for the logit of the prompt only.

    `threshold` is the recommended confidence threshold. The other fields come from prompts outside the training set:
    `deferral` is f(t), the deferred share, sure prompts included, as points (threshold, share); `bounds` are points
    (threshold, hard_below, easy_above): a prompt with a probability below `hard_below` is surely deferred at that
    threshold, one above `easy_above` surely accepted. `auroc` is the AUROC for 'as good' on prompts that neither
    trained nor calibrated it, with the bounds of its interval at 95 %; empty if unknown. `cascade`: LIGHT>HEAVY, the
    models of its images; "" if unknown."""

    feature_width: int
    embedding_width: int
    hidden_width: int
    encoder_digest: str
    slope: float = 1.0
    intercept: float = 0.0
    prompt_slope: float = 1.0
    prompt_intercept: float = 0.0
    threshold: float = DEFAULT_THRESHOLD
    deferral: tuple[tuple[float, ...], ...] = ((0.0, 0.0), (1.0, 1.0))
    bounds: tuple[tuple[float, ...], ...] = ((0.0, 0.0, 1.0), (1.0, 0.0, 1.0))
    auroc: tuple[float, ...] = ()
    cascade: str = ""

    @property
    def shape(self) -> HeadShape:
        return HeadShape(self.feature_width, self.embedding_width, self.hidden_width)

    def verdict(self, probability: float, threshold: float) -> Verdict:
        """Return the verdict that a prompt's probability allows at a confidence threshold."""
        hard_below = max((hard for at, hard, _ in self.bounds if at <= threshold), default=0.0)
        if probability < hard_below:
            return Verdict.HARD
        easy_above = min((easy for at, _, easy in self.bounds if at >= threshold), default=1.0)
        return Verdict.EASY if probability > easy_above else Verdict.UNSURE

    def as_json(self) -> dict[str, Any]:
        """Return the record as the JSON object of its file."""
        return {"version": VERSION, **asdict(self)}


class PromptHead:
    """Score prompts with a loaded head. Embeddings are float32, unit length, of the encoder with
    `record.encoder_digest`."""

    def __init__(self, record: HeadRecord, network: HeadNetwork) -> None:
        self.record = record
        self._network = network.eval()

    def prompt(self, field: str, embedding: Embedding | None) -> NDArray[np.float32]:
        """Return a message's embedding (embedding_width,). Raises InvalidArgument naming `field` if it is missing or
        malformed, and FailedPrecondition OTHER_ENCODER for another encoder's."""
        if embedding is None:
            raise InvalidArgument.of(field, "must be there: the cascade's discriminator reads it")
        if embedding.encoder_digest != self.record.encoder_digest:
            message = f"{field} is of encoder {embedding.encoder_digest[:80]}, the discriminator reads those of "
            raise FailedPrecondition("OTHER_ENCODER", message + self.record.encoder_digest)
        if len(embedding.values) != 4 * self.record.embedding_width:
            wanted = f"must have {self.record.embedding_width} numbers of four bytes, has {len(embedding.values)} bytes"
            raise InvalidArgument.of(field, wanted)
        found = np.frombuffer(embedding.values, "<f4").astype(np.float32)
        if not np.isfinite(found).all():
            raise InvalidArgument.of(field, "must have finite numbers")
        return found

    def probabilities(self, features: Tensor, prompts: Sequence[NDArray[np.float32]]) -> list[float]:
        """Return the calibrated probability 0..1 that each image is as good as a heavy one would be."""
        logits = self._network(features, torch.from_numpy(np.stack(prompts)))
        return _line(logits, self.record.slope, self.record.intercept)

    @torch.inference_mode()
    def foresee(
        self, embeddings: Sequence[NDArray[np.float32]], threshold: float | None = None
    ) -> list[PromptForesight]:
        """Return the foresight of each prompt at that confidence threshold, by default the recommended one."""
        at = self.record.threshold if threshold is None else threshold
        logits = self._network.foresee(torch.from_numpy(np.stack(embeddings)))
        found = _line(logits, self.record.prompt_slope, self.record.prompt_intercept)
        return [PromptForesight(probability, self.record.verdict(probability, at), at) for probability in found]


def _line(logits: Tensor, slope: float, intercept: float) -> list[float]:
    found: list[float] = torch.sigmoid(slope * logits.double() + intercept).tolist()
    return found


def open_prompt_head(directory: Path, feature_width: int) -> PromptHead:
    """Return the head of a directory that has one. Raises BadCheckpoint with the file and the key for an unsound head,
    or one for another number of features than `feature_width`."""
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
    """Return the record in a head's JSON file. Raises BadCheckpoint with the file and the key."""
    document = read_json_object(path)
    if document.get("version") != VERSION:
        raise BadCheckpoint(f"{path}: version must be {VERSION}, got {document.get('version')!r:.80}")
    found: dict[str, Any] = {
        **{key: whole_number(path, document, key, 1, _MAX_WIDTH) for key in _WIDTHS},
        **{key: _finite(path, document, key) for key in ("slope", "intercept", "prompt_slope", "prompt_intercept")},
        "threshold": _share(path, document, "threshold"),
        "encoder_digest": document.get("encoder_digest"),
        "deferral": _points(path, document, "deferral", 2),
        "bounds": _points(path, document, "bounds", 3),
        "auroc": _auroc(path, document),
        "cascade": document.get("cascade", ""),
    }
    if not isinstance(found["cascade"], str):
        raise BadCheckpoint(f"{path}: cascade must be LIGHT>HEAVY, got {found['cascade']!r:.80}")
    if not isinstance(found["encoder_digest"], str) or not found["encoder_digest"]:
        message = f"encoder_digest must say whose embeddings it reads, got {found['encoder_digest']!r:.80}"
        raise BadCheckpoint(f"{path}: {message}")
    if any(hard > easy for _, hard, easy in found["bounds"]):
        raise BadCheckpoint(f"{path}: bounds must not have a hard_below above its easy_above")
    return HeadRecord(**found)


def _auroc(path: Path, document: Mapping[str, Any]) -> tuple[float, ...]:
    try:
        return measured_auroc(path, document)
    except ValueError as error:
        raise BadCheckpoint(str(error)) from None


def _finite(path: Path, document: Mapping[str, Any], key: str) -> float:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise BadCheckpoint(f"{path}: {key} must be a finite number, got {value!r:.80}")
    return float(value)


def _share(path: Path, document: Mapping[str, Any], key: str) -> float:
    value = _finite(path, document, key)
    if not 0.0 <= value <= 1.0:
        raise BadCheckpoint(f"{path}: {key} must be between 0 and 1, got {value}")
    return value


def _points(path: Path, document: Mapping[str, Any], key: str, width: int) -> tuple[tuple[float, ...], ...]:
    points = document.get(key)
    if not isinstance(points, list) or not 2 <= len(points) <= _MAX_POINTS:
        raise BadCheckpoint(f"{path}: {key} must be 2 to {_MAX_POINTS} points, got {points!r:.80}")
    if not all(isinstance(point, list) and len(point) == width and all(map(_is_share, point)) for point in points):
        raise BadCheckpoint(f"{path}: {key} must be points of {width} numbers within 0 and 1")
    found = tuple(tuple(float(value) for value in point) for point in points)
    for column in zip(*found, strict=True):
        if list(column) != sorted(column):
            raise BadCheckpoint(f"{path}: {key} must ascend in every number")
    return found


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0
