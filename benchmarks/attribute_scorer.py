"""Score the attributes of a prompt that an image shows, with a network that shares no weight with any model and was
trained on drawings only.

CLIPScore by a tiny encoder hardly reacts to a changed colour. The scorer is trained with

    pentimento zoo train judge --work SCORERS

and stays in that work folder, since no service loads it.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.image_scorers import pixels_of
from zoo.drawing.captions import UNSAID
from zoo.evaluate.examination import Examiner
from zoo.registry import WEIGHTS
from zoo.train.parts import check_trained

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
