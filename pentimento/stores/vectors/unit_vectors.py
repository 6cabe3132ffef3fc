"""Check vectors for every index. Apart from the interface: the embedded index's process, which compares checked
vectors, does without numpy."""

import math
from collections.abc import Sequence

import numpy as np

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.vectors.index import Dimensions, VectorPoint

# float32 rounding of an encoder in half precision stays far below it.
_UNIT_TOLERANCE = 1e-2


def check_points(points: Sequence[VectorPoint], dimensions: Dimensions) -> None:
    """Raise InvalidArgument for a vector of any of the points, as `check_vector` does."""
    for point in points:
        check_vector("text", point.text, dimensions.text)
        if point.image is not None:
            check_vector("image", point.image, dimensions.image)


def check_vector(name: str, values: bytes, dimension_count: int) -> None:
    """Raise InvalidArgument unless `values` are `dimension_count` finite float32 of about unit length."""
    if len(values) != 4 * dimension_count:
        raise InvalidArgument.of(name, f"must be {dimension_count} float32 values, got {len(values)} bytes")
    # In double precision no square of a float32 overflows.
    read = np.frombuffer(values, np.float32).astype(np.float64)
    length = math.sqrt(np.dot(read, read))
    # Written so that NaN fails too; zero and infinite vectors fail by their length.
    if not abs(length - 1) <= _UNIT_TOLERANCE:
        raise InvalidArgument.of(name, f"must be finite and of unit length, got length {length:.4g}")
