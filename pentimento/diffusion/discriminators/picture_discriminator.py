"""Compute the confidences of a loaded discriminator."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pentimento.diffusion.discriminators.prompt_heads import PromptHead
from pentimento.diffusion.discriminators.scoring_network import Preprocessing, ScoringNetwork
from pentimento.domain.errors import FailedPrecondition


@dataclass(frozen=True)
class PictureDiscriminator:
    """Score images with a loaded discriminator. `slope` and `intercept` turn its log odds into a probability. With a
    `head` it also reads the prompt, and scores whether the image is as good as a heavy model's instead of whether it
    looks real."""

    digest: str
    image_size_px: int
    preprocessing: Preprocessing
    network: ScoringNetwork
    real_label: int
    slope: float
    intercept: float
    head: PromptHead | None = None

    def pixels(self, image: Image.Image) -> NDArray[np.float32]:
        """Return the pixels (3, size, size) of an RGB image."""
        return self.preprocessing(image)

    @torch.inference_mode()
    def confidences(self, pixels: Sequence[NDArray[np.float32]]) -> list[float]:
        """Return the calibrated probability 0..1 that each image, as from `pixels`, is real."""
        logits = self.network.logits(self._features(pixels)).double()
        others = logits.clone()
        others[:, self.real_label] = -torch.inf
        odds = logits[:, self.real_label] - others.logsumexp(dim=1)
        found: list[float] = torch.sigmoid(self.slope * odds + self.intercept).tolist()
        return found

    @torch.inference_mode()
    def confidences_with(
        self, pixels: Sequence[NDArray[np.float32]], prompts: Sequence[NDArray[np.float32]]
    ) -> list[float]:
        """Return the calibrated probability 0..1 that each image, with its prompt's embedding, is as good as the heavy
        model's would be. Raises FailedPrecondition NO_PROMPT_HEAD without a head."""
        if self.head is None:
            raise FailedPrecondition("NO_PROMPT_HEAD", "the discriminator reads images only")
        return self.head.probabilities(self._features(pixels), prompts)

    def _features(self, pixels: Sequence[NDArray[np.float32]]) -> Tensor:
        return self.network.features(torch.from_numpy(np.stack(pixels)))
