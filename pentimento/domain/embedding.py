"""A retrieval embedding."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Embedding:
    """A unit vector of `dimension_count` float32, little-endian, of the encoder with that digest."""

    values: bytes = field(repr=False)
    dimension_count: int
    encoder_digest: str
