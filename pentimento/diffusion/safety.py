"""Classify prompts and images as safe or not, by transformers' classifiers in a directory.

The directory has `config.json` with `id2label`, safetensors, and `tokenizer.json` or `preprocessor_config.json`. Code
that it names is never imported. Classifiers of one label an input (softmax) and of several (sigmoid) are read.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint, component_files, digest_directory, read_json_object
from pentimento.diffusion.preprocessing import read_preprocessing, to_pixels
from pentimento.domain.safety import SafetyVerdict

PROMPT_TYPES = frozenset({"bert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"})
IMAGE_TYPES = frozenset({"beit", "convnext", "convnextv2", "dinov2", "mobilenet_v2", "resnet", "siglip", "swin", "vit"})
SEVERAL_LABELS = "multi_label_classification"
MAX_TOKENS = 512


@dataclass(frozen=True)
class SafetyClassifier:
    """Classify inputs that `prepare` has made from prompts or images; `logits` are those of a batch, a row an input."""

    digest: str
    prepare: Callable[[Any], Any]
    logits: Callable[[Sequence[Any]], Tensor]
    labels: tuple[str, ...]
    unsafe: tuple[int, ...]
    several: bool
    limit: float

    @torch.inference_mode()
    def verdicts(self, prepared: Sequence[Any]) -> list[SafetyVerdict]:
        """Return a verdict an input."""
        logits = self.logits(prepared).double().cpu()
        shares = (torch.sigmoid(logits) if self.several else logits.softmax(dim=1))[:, list(self.unsafe)]
        # Independent labels: the probability that one or more hold.
        whole = 1.0 - (1.0 - shares).prod(dim=1) if self.several else shares.sum(dim=1)
        likeliest = shares.argmax(dim=1).tolist()
        return [
            SafetyVerdict(float(share), self.limit, self.labels[self.unsafe[index]], self.digest)
            for share, index in zip(whole, likeliest, strict=True)
        ]


def open_prompt_classifier(
    directory: Path, unsafe: Sequence[str], limit: float, device: torch.device
) -> SafetyClassifier:
    """Return a loaded classifier of prompts. Raises BadCheckpoint, which names the file and the key."""
    from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

    document = _document(directory, PROMPT_TYPES)
    network = _network(AutoModelForSequenceClassification, directory, device)
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise BadCheckpoint(f"{path}: is missing")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
    length = min(int(document.get("max_position_embeddings", MAX_TOKENS)) - 2, MAX_TOKENS)

    def logits(prompts: Sequence[str]) -> Tensor:
        tokens = tokenizer(list(prompts), padding=True, truncation=True, max_length=length, return_tensors="pt")
        found: Tensor = network(tokens["input_ids"].to(device), tokens["attention_mask"].to(device)).logits
        return found

    return _tried(directory, document, str, logits, unsafe, limit, "")


def open_image_classifier(
    directory: Path, unsafe: Sequence[str], limit: float, device: torch.device
) -> SafetyClassifier:
    """Return a loaded classifier of RGB images. Raises BadCheckpoint, which names the file and the key."""
    from transformers import AutoModelForImageClassification

    document = _document(directory, IMAGE_TYPES)
    network = _network(AutoModelForImageClassification, directory, device)
    path = directory / "preprocessor_config.json"
    steps = read_preprocessing(path, _size(path), crops=False)

    def prepare(image: Image.Image) -> NDArray[np.float32]:
        return to_pixels(image, steps)

    def logits(pixels: Sequence[NDArray[np.float32]]) -> Tensor:
        found: Tensor = network(pixel_values=torch.from_numpy(np.stack(pixels)).to(device)).logits
        return found

    return _tried(directory, document, prepare, logits, unsafe, limit, Image.new("RGB", (64, 64)))


def _document(directory: Path, types: frozenset[str]) -> dict[str, Any]:
    # Links out of the directory, large texts and pickles are refused before a library opens a file.
    component_files(directory, directory)
    path = directory / "config.json"
    document = read_json_object(path)
    if document.get("model_type") not in types:
        there = ", ".join(sorted(types))
        raise BadCheckpoint(f"{path}: model_type must be one of {there}, got {document.get('model_type')!r:.80}")
    return document


def _network(kind: Any, directory: Path, device: torch.device) -> Any:
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        network = kind.from_pretrained(
            directory, local_files_only=True, use_safetensors=True, trust_remote_code=False, dtype=torch.float32
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadCheckpoint(f"{directory}: cannot be loaded: {' '.join(str(error).split())[:200]}") from None
    return network.eval().requires_grad_(False).to(device)


def _size(path: Path) -> int:
    """Return the edge of the pixels that a preprocessor makes. Raises BadCheckpoint for one that is not square."""
    size = read_json_object(path).get("size", {})
    edge = size.get("height", size.get("shortest_edge")) if isinstance(size, dict) else size
    if type(edge) is not int:
        raise BadCheckpoint(f"{path}: size must be a square of pixels, got {json.dumps(size)[:80]}")
    return edge


def _tried(
    directory: Path,
    document: dict[str, Any],
    prepare: Callable[[Any], Any],
    logits: Callable[[Sequence[Any]], Tensor],
    unsafe: Sequence[str],
    limit: float,
    example: Any,
) -> SafetyClassifier:
    """Return the classifier once it has classified an example. Raises BadCheckpoint for labels that it lacks."""
    path = directory / "config.json"
    named = document.get("id2label")
    if not isinstance(named, dict) or sorted(named) != sorted(map(str, range(len(named)))):
        raise BadCheckpoint(f"{path}: id2label must number its labels from 0 on")
    labels = tuple(str(named[str(number)]) for number in range(len(named)))
    found = tuple(number for number, label in enumerate(labels) if label.lower() in {one.lower() for one in unsafe})
    if not found or len(found) == len(labels):
        raise BadCheckpoint(f"{path}: the unsafe labels must be some of {', '.join(labels)}, got {', '.join(unsafe)}")
    several = document.get("problem_type") == SEVERAL_LABELS
    classifier = SafetyClassifier(digest_directory(directory), prepare, logits, labels, found, several, limit)
    with torch.inference_mode():
        tried = logits([prepare(example)])
    if tried.shape != (1, len(labels)) or not tried.isfinite().all():
        raise BadCheckpoint(f"{directory}: its weights give no usable logits of {len(labels)} labels")
    return classifier
