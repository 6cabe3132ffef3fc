"""Load a dual encoder that no model shares a weight with: `tiny-clip`'s architecture and drawings, another seed.

It stays in a separate work folder, since no service loads it. Differences that neither kind of encoder can see stay
invisible.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import CLIPModel

from pentimento.domain.errors import FailedPrecondition
from zoo.drawing.dataset import as_pixels, tokenise
from zoo.drawing.tokenizer import load_tokenizer
from zoo.train.dual_encoder import TowersAndHeads
from zoo.train.loop import load_trained
from zoo.train.parts import check_trained

BATCH = 256


def check_encoder_apart(work: Path) -> None:
    """Raise NotFound, naming the training command, if the work folder has no dual encoder."""
    check_trained(work, "dual-encoder", f"--seed 5 --work {work}")


class EncoderApart:
    """Hold the dual encoder of a work folder. Raises NotFound, naming the training command, if it is missing."""

    def __init__(self, work: Path) -> None:
        check_encoder_apart(work)
        self._work = work
        self._tokenizer = load_tokenizer(work / "tokenizer")
        self._towers = load_trained(TowersAndHeads(self._tokenizer), work / "dual-encoder")

    def check_unshared(self, clip: CLIPModel) -> None:
        """Raise FailedPrecondition if the text weights are those of `clip`, which condition the models."""
        ours, theirs = (one.text_model.embeddings.token_embedding.weight for one in (self._towers.clip, clip))
        if ours.shape == theirs.shape and torch.allclose(ours, theirs, atol=1e-4):
            how = "train one from another seed: pentimento zoo train dual-encoder --seed 5 --work DIR"
            raise FailedPrecondition(
                "ENCODER_SHARED", f"encoder: {self._work} has the text weights of tiny-clip; {how}"
            )

    @torch.no_grad()
    def scores(self, pictures: Tensor, captions: list[str]) -> Tensor:
        """Return the cosines (n,) of uint8 images (n, 3, height, width) and their captions."""
        texts = self._towers.text(tokenise(self._tokenizer, captions))
        images = torch.cat([self._towers.image(as_pixels(part)) for part in pictures.split(BATCH)])
        return functional.cosine_similarity(texts, images)
