"""Score images by an attribute scorer and an encoder that neither route nor were trained with the router's.

Both are trained on drawings only and stay in work folders, since no service loads them:

    pentimento zoo train judge --work SCORERS
    pentimento zoo train dual-encoder --seed 5 --work OTHERS

The attribute scorer shares no weight with any model. The encoder has `tiny-clip`'s architecture and training drawings,
but another seed: it has none of the weights that the cache searches by and that condition the models. Differences that
neither kind of encoder can see stay invisible here.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.reuse_quality import Array, ScoredImages
from pentimento.images.decoding import decode
from zoo.drawing.captions import UNSAID
from zoo.drawing.dataset import as_pixels
from zoo.evaluate.encoder_apart import EncoderApart, check_encoder_apart
from zoo.evaluate.examination import BATCH, Examiner
from zoo.registry import WEIGHTS
from zoo.train.parts import check_trained


def check_scorers(scorer_work: Path, encoder_work: Path) -> None:
    """Raise NotFound, naming the training command, if the scorer or the encoder is missing."""
    check_trained(scorer_work, "judge", f"--work {scorer_work}")
    check_encoder_apart(encoder_work)


class ImageScorers:
    """Hold the attribute scorer of one work folder, the dual encoder of another, and the routing encoder."""

    def __init__(self, scorer_work: Path, encoder_work: Path) -> None:
        check_scorers(scorer_work, encoder_work)
        self._examiner = Examiner(WEIGHTS, scorer_work)
        self._encoder = EncoderApart(encoder_work)

    def score(self, images: Sequence[bytes], prompts: Sequence[str], asked: Sequence[Sequence[int]]) -> ScoredImages:
        """Return the scores of encoded images and their prompts; `asked` has a class index per attribute
        (`Utterance.asked`)."""
        pixels = torch.stack([pixels_of(image) for image in images])
        marks = self._examiner.mark(pixels[:, None], tuple(prompts), torch.tensor(asked))
        return ScoredImages(
            scores=np.asarray(self._encoder.scores(pixels, list(prompts)).double().numpy()),
            routing_scores=marks.clip_score[:, 0],
            right=marks.right[:, 0],
            asked=marks.asked[:, 0],
            features=self._features(pixels),
        )

    @torch.no_grad()
    def _features(self, pixels: Tensor) -> Array:
        parts = [self._examiner.reader.body(as_pixels(part)) for part in pixels.split(BATCH)]
        return np.asarray(torch.cat(parts).double().numpy())


def pixels_of(image: bytes) -> Tensor:
    """Return an encoded image as uint8 (3, height, width)."""
    array = decode(image, "picture", lambda found: np.asarray(found.convert("RGB")))
    return torch.from_numpy(array.copy()).permute(2, 0, 1)


ATTRIBUTES_SEEN = "attributes_seen"


class AttributeScorer:
    """Score the share of requested attributes that an image shows (`services`' `QualityJudge`)."""

    name = ATTRIBUTES_SEEN

    def __init__(self, work: Path, asked: Sequence[Sequence[int]]) -> None:
        """Load the scorer; `asked` has a class index per attribute for each row (`Utterance.asked`)."""
        check_trained(work, "judge", f"--work {work}")
        self._examiner = Examiner(WEIGHTS, work)
        self._asked = torch.tensor(asked)

    def qualities(self, images: Sequence[bytes], rows: Sequence[int]) -> list[float]:
        """Return the shares, 0..1."""
        wanted = self._asked[list(rows)]
        right, _ = self._examiner.read(torch.stack([pixels_of(image) for image in images]), wanted)
        shares: list[float] = (right.sum(dim=1) / (wanted != UNSAID).sum(dim=1)).tolist()
        return shares
