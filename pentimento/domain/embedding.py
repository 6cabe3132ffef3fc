"""A retrieval embedding."""

from dataclasses import dataclass, field

from pentimento.domain.errors import InvalidArgument


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
