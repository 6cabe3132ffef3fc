"""Examine images of held-out prompts: the dual encoders' scores and the attribute scorer's reading of each.

The attribute scorer is trained on drawings only and shares no weight with the examined models. Images are (prompts,
seeds, 3, height, width); a drawing or a reconstruction has one seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import CLIPModel, CLIPTokenizer

from pentimento.domain.errors import NotFound
from zoo.drawing.captions import ATTRIBUTES, UNSAID
from zoo.drawing.dataset import as_pixels, tokenise
from zoo.evaluate.encoder_apart import EncoderApart
from zoo.evaluate.estimates import Array
from zoo.train.judge import AttributeReader
from zoo.train.loop import load_trained
from zoo.train.parts import check_trained

BATCH = 256
# encoders of CLIPScores: tiny-clip, with text weights that the models share, and one without shared weights
SHARED, APART = "CLIPScore", "CLIPScore by an encoder apart"


def needed(path: Path) -> Path:
    """Return a figure's required path. Raises NotFound, naming it, if it is missing."""
    if not path.exists():
        raise NotFound("FILE_MISSING", f"{path}: not there")
    return path


def attribute_names() -> tuple[str, ...]:
    """Return the attributes' names: the second and third objects' shapes are shapes."""
    return tuple(dict.fromkeys(_own_name(name) for name in ATTRIBUTES))


def _own_name(name: str) -> str:
    return name.rpartition("_")[2]


COLUMNS = {
    own: [column for column, name in enumerate(ATTRIBUTES) if _own_name(name) == own] for own in attribute_names()
}


@dataclass(frozen=True)
class Marks:
    """Hold the dual encoders' and the scorer's results for images."""

    clip_score: Array  # (prompts, seeds): cosine of the image and its caption, by tiny-clip
    right: Array  # bool (prompts, seeds, attributes): requested, and seen by the scorer
    asked: Array  # bool (prompts, 1, attributes)
    log_likelihood: Array  # (prompts, seeds): the scorer's, in nats, mean over the requested attributes
    score_apart: Array | None = None  # (prompts, seeds): the cosine by an encoder that no model shares

    @property
    def clip_scores(self) -> dict[str, Array]:
        """Return CLIPScores (prompts, seeds) by name, one per encoder."""
        return {SHARED: self.clip_score} | ({} if self.score_apart is None else {APART: self.score_apart})

    @cached_property
    def score(self) -> Array:
        """Return the share of requested attributes that the scorer sees: (prompts, seeds)."""
        scores: Array = self.right.sum(axis=2) / self.asked.sum(axis=2)
        return scores

    def attribute(self, name: str) -> tuple[Array, Array]:
        """Return how many of a kind the scorer sees, (prompts, seeds), and how many were requested, (prompts, 1)."""
        columns = COLUMNS[name]
        return self.right[:, :, columns].sum(axis=2), self.asked[:, :, columns].sum(axis=2)


@torch.no_grad()
def read_attributes(found: dict[str, Tensor], wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return which wanted values (n, attributes) the scorer's logits give, and their log-probabilities; False and 0
    where none is wanted."""
    right, likelihood = [], []
    for column, logits in enumerate(found.values()):
        target = wanted[:, column]
        said = target != UNSAID
        probability = logits.log_softmax(dim=1).gather(1, target.clamp(min=0)[:, None])[:, 0]
        right.append((logits.argmax(dim=1) == target) & said)
        likelihood.append(torch.where(said, probability, 0.0))
    return torch.stack(right, dim=1), torch.stack(likelihood, dim=1)


class Examiner:
    """Hold the exported dual encoder, the attribute scorer of the work folder, and the encoder of another work folder,
    if any.

    Raises NotFound for a missing one, and FailedPrecondition for an encoder with the exported one's weights.
    """

    def __init__(self, weights: Path, work: Path, encoder: Path | None = None) -> None:
        folder = needed(weights / "tiny-clip")
        self.tokenizer = CLIPTokenizer.from_pretrained(folder)
        self.clip = CLIPModel.from_pretrained(folder).eval()
        self._apart = None if encoder is None else EncoderApart(encoder)
        if self._apart is not None:
            self._apart.check_unshared(self.clip)
        self._work = work

    @cached_property
    def reader(self) -> AttributeReader:
        check_trained(self._work, "judge", f"--work {self._work}")
        return load_trained(AttributeReader(), self._work / "judge")

    @torch.no_grad()
    def embed_texts(self, captions: list[str]) -> Tensor:
        """Return unit vectors (n, dimensions)."""
        pooled = self.clip.text_model(input_ids=tokenise(self.tokenizer, captions)).pooler_output
        return functional.normalize(self.clip.text_projection(pooled), dim=-1)

    @torch.no_grad()
    def embed_images(self, images: Tensor) -> Tensor:
        """Return unit vectors (n, dimensions) of uint8 images (n, 3, height, width)."""
        parts = [self.clip.vision_model(pixel_values=as_pixels(part)).pooler_output for part in images.split(BATCH)]
        return functional.normalize(self.clip.visual_projection(torch.cat(parts)), dim=-1)

    def clip_scores(self, images: Tensor, captions: list[str]) -> Tensor:
        """Return cosines (n,) of uint8 images (n, 3, height, width) and their captions."""
        return (self.embed_images(images) * self.embed_texts(captions)).sum(dim=-1)

    @torch.no_grad()
    def read(self, images: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Return `read_attributes` of uint8 images (n, 3, height, width)."""
        parts = zip(images.split(BATCH), wanted.split(BATCH), strict=True)
        read = [read_attributes(self.reader(as_pixels(part)), target) for part, target in parts]
        return torch.cat([right for right, _ in read]), torch.cat([likelihood for _, likelihood in read])

    def mark(self, images: Tensor, captions: tuple[str, ...], wanted: Tensor) -> Marks:
        """Return the marks of uint8 images (prompts, seeds, 3, height, width); `wanted` (prompts, attributes) as in
        `Prompts`."""
        prompts, seeds = images.shape[:2]
        flat = images.flatten(0, 1)
        texts = self.embed_texts(list(captions)).repeat_interleave(seeds, dim=0)
        similarity = (self.embed_images(flat) * texts).sum(dim=-1)
        repeated = [caption for caption in captions for _ in range(seeds)]
        apart = None if self._apart is None else self._apart.scores(flat, repeated)
        right, likelihood = self.read(flat, wanted.repeat_interleave(seeds, dim=0))
        asked = (wanted != UNSAID)[:, None].numpy()
        total = likelihood.view(prompts, seeds, -1).sum(dim=2).double().numpy()
        return Marks(
            similarity.view(prompts, seeds).double().numpy(),
            right.view(prompts, seeds, -1).numpy(),
            asked,
            total / asked.sum(axis=2),
            None if apart is None else apart.view(prompts, seeds).double().numpy(),
        )
