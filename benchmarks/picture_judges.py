"""Who says what pictures are worth: the judge of attributes and an encoder, neither of which routes or was trained on.

Both are trained on drawings alone and lie in work folders, since nothing is served with them:

    pentimento zoo train judge --work JUDGES
    pentimento zoo train dual-encoder --seed 5 --work OTHERS

The judge shares no weight with any model. The encoder is built as `tiny-clip` is and has seen the same drawings, but
was trained apart, from another seed: it has none of the weights that the cache searches by and the models are
conditioned on. What both kinds of encoder fail to see, both fail to see.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.reuse_quality import Array, JudgedPictures
from pentimento.pictures.decoding import decode
from zoo.drawing.dataset import as_pixels
from zoo.evaluate.encoder_apart import EncoderApart, check_encoder_apart
from zoo.evaluate.examination import BATCH, Examiner
from zoo.registry import WEIGHTS
from zoo.train.parts import check_trained


def check_judges(judge_work: Path, encoder_work: Path) -> None:
    """Raise NotFound that says how to train whichever of the two is not there."""
    check_trained(judge_work, "judge", f"--work {judge_work}")
    check_encoder_apart(encoder_work)


class PictureJudges:
    """The judge of one work folder and the dual encoder of another, beside the encoder that routes."""

    def __init__(self, judge_work: Path, encoder_work: Path) -> None:
        check_judges(judge_work, encoder_work)
        self._examiner = Examiner(WEIGHTS, judge_work)
        self._encoder = EncoderApart(encoder_work)

    def judge(
        self, pictures: Sequence[bytes], prompts: Sequence[str], asked: Sequence[Sequence[int]]
    ) -> JudgedPictures:
        """Return what is said of encoded pictures and the prompts that they were painted from; `asked` holds a class
        index for each attribute (`Utterance.asked`)."""
        pixels = torch.stack([pixels_of(picture) for picture in pictures])
        marks = self._examiner.mark(pixels[:, None], tuple(prompts), torch.tensor(asked))
        return JudgedPictures(
            scores=np.asarray(self._encoder.scores(pixels, list(prompts)).double().numpy()),
            routing_scores=marks.clip_score[:, 0],
            right=marks.right[:, 0],
            asked=marks.asked[:, 0],
            features=self._features(pixels),
        )

    @torch.no_grad()
    def _features(self, pixels: Tensor) -> Array:
        parts = [self._examiner.judge.body(as_pixels(part)) for part in pixels.split(BATCH)]
        return np.asarray(torch.cat(parts).double().numpy())


def pixels_of(picture: bytes) -> Tensor:
    """Return an encoded picture as uint8 (3, height, width)."""
    array = decode(picture, "picture", lambda image: np.asarray(image.convert("RGB")))
    return torch.from_numpy(array.copy()).permute(2, 0, 1)
