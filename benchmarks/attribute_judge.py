"""The zoo's judge of attributes beside CLIPScore: what of a prompt a picture shows, read by a network that shares no
weight with any model and has seen drawings alone.

CLIPScore by a tiny encoder hardly sees a colour that has changed. The judge is trained with

    pentimento zoo train judge --work JUDGES

and lies in that work folder, since nothing is served with it.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.picture_judges import pixels_of
from zoo.drawing.captions import UNSAID
from zoo.evaluate.examination import Examiner
from zoo.registry import WEIGHTS
from zoo.train.parts import check_trained

ATTRIBUTES_SEEN = "attributes_seen"


class AttributeJudge:
    """The share of the attributes asked for that the judge sees in a picture (`services`' `QualityJudge`)."""

    name = ATTRIBUTES_SEEN

    def __init__(self, work: Path, asked: Sequence[Sequence[int]]) -> None:
        """`asked` holds for each row a class index for each attribute (`Utterance.asked`)."""
        check_trained(work, "judge", f"--work {work}")
        self._examiner = Examiner(WEIGHTS, work)
        self._asked = torch.tensor(asked)

    def qualities(self, pictures: Sequence[bytes], rows: Sequence[int]) -> list[float]:
        """Return the shares, 0..1."""
        wanted = self._asked[list(rows)]
        right, _ = self._examiner.read(torch.stack([pixels_of(picture) for picture in pictures]), wanted)
        shares: list[float] = (right.sum(dim=1) / (wanted != UNSAID).sum(dim=1)).tolist()
        return shares
