"""Embed an emulated image as the prompt that it was generated for: its pixels show nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lab.emulation.fleet_file import label_of
from pentimento.domain.errors import InvalidArgument
from services.embedder.model import CPU, EmbeddingModel, open_model


@dataclass(frozen=True)
class LabelledImages:
    """The image side of any encoder of texts. The similarity of a prompt to an image is that of two prompts."""

    texts: EmbeddingModel

    def prepare(self, image: bytes, field: str) -> str:
        """Return the prompt inside the image. Raises InvalidArgument for an image that no emulated device made."""
        label = label_of(image)
        if label is None:
            raise InvalidArgument.of(field, "must be an image of an emulated device")
        return label.prompt

    def embed(self, prepared: Sequence[str]) -> list[bytes]:
        """Return a unit vector per prompt, float32 little-endian."""
        return self.texts.embed_texts(prepared)


def open_emulated_model(directory: Path, device: torch.device = CPU) -> EmbeddingModel:
    """Return the encoder of a directory with `LabelledImages`. Raises BadCheckpoint."""
    model = open_model(directory, device)
    return replace(model, images=LabelledImages(model))
