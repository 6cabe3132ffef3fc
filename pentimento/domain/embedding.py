"""A retrieval embedding, and the spaces that are searched."""

from dataclasses import dataclass, field
from enum import Enum

from pentimento.domain.errors import InvalidArgument


class Space(Enum):
    """Name the spaces of a cache: prompts are compared with prompts in one, and with images in the other. Each has an
    encoder; one may have both."""

    TEXT = "text"
    IMAGE = "image"


@dataclass(frozen=True)
class Embedding:
    """A unit vector of an encoder: `dimension_count` float32, little-endian. Raises InvalidArgument for values of
    another length."""

    values: bytes = field(repr=False)
    dimension_count: int
    encoder_digest: str

    def __post_init__(self) -> None:
        if not self.dimension_count or len(self.values) != 4 * self.dimension_count:
            size = f"{len(self.values)} bytes for {self.dimension_count} dimensions"
            raise InvalidArgument.of("values", f"must be 4 bytes a dimension, got {size}")


@dataclass(frozen=True)
class PromptEmbedding:
    """Hold a prompt's vectors: `text`, and `image` in the space of images where another encoder has it; None where the
    text's encoder has both, or where that encoder did not answer."""

    text: Embedding
    image: Embedding | None = None
