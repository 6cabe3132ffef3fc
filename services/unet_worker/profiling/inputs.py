"""Define the inputs of measurements, and the protocols of encoders and scorers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pentimento.profiles.catalogue import check_continues
from pentimento.profiles.document import Profile, ProfileRow

Vectors = NDArray[np.float32]


class ImageEncoder(Protocol):
    """Embed texts and images with the cache's dual encoder."""

    def embed_texts(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors (texts, dimensions)."""

    def embed_images(self, pictures: Sequence[bytes]) -> Vectors:
        """Return unit vectors (images, dimensions) of encoded images."""


class QualityScorer(Protocol):
    """Score images; higher is better."""

    @property
    def name(self) -> str:
        """Return the name of its measure in profiles."""

    def qualities(self, pictures: Sequence[bytes], rows: Sequence[int]) -> list[float]:
        """Return the scores of encoded images, each generated from the prompt of its row."""


@dataclass(frozen=True)
class StudyInputs:
    """Hold a measurement's inputs: prompts, the encoder with its name and digest, and the file's earlier profiles.

    `scorers_of` returns scorers in addition to CLIPScore for the given prompts.
    """

    prompts: Sequence[str] = ()
    encoder: ImageEncoder | None = None
    encoder_name: str = ""
    encoder_digest: str = ""
    scorers_of: Callable[[Sequence[str]], Sequence["QualityScorer"]] = lambda prompts: ()
    earlier: tuple[Profile, ...] = ()

    @property
    def images(self) -> ImageEncoder:
        assert self.encoder is not None
        return self.encoder

    def earlier_rows(self, profile: Profile) -> tuple[ProfileRow, ...]:
        """Return the rows of the earlier profile on the same subject. Raises InvalidArgument if its conditions
        differ."""
        earlier = self.earlier_of(profile)
        if earlier is None:
            return ()
        check_continues(profile, earlier)
        return earlier.rows

    def earlier_of(self, profile: Profile) -> Profile | None:
        """Return the earlier profile on the same subject."""
        return next((one for one in self.earlier if one.key == profile.key), None)
