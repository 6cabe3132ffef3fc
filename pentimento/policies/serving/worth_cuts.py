"""What whole values are worth at most, by the relaxations that were solved before.

What the best other values make of whole ones is concave in these: whatever bounds a relaxation had, its worths say of
all whole values, within its bounds or not, what they cannot exceed. (In Benders' decomposition it is an optimality
cut.)
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pentimento.policies.serving.whole_rounding import Bounds

if TYPE_CHECKING:
    import numpy as np

# Solvers of floating-point numbers meet what they bound within such a share.
_ROUNDED = 1e-9
# Sums of products, by cut. Not by BLAS, whose threads would wait at full speed for more.
_BY_CUT = "ij,j->i"


class WorthCuts:
    """The cuts of one program with `count` whole variables, none at first."""

    def __init__(self, count: int) -> None:
        import numpy as np

        self._offsets = np.empty(32)
        # Of one more of each variable; the same where that is worth something, and where it costs something.
        self._worths, self._gains, self._losses = (np.empty((32, count)) for _ in range(3))
        self._count = 0

    def add(self, objective: float, values: "np.ndarray", worths: "np.ndarray") -> None:
        """Learn from a relaxation: what it is worth with these whole variables, and with one more of each. Changes
        state."""
        import numpy as np

        if self._count == len(self._offsets):
            self._offsets, self._worths, self._gains, self._losses = (
                np.concatenate((known, np.empty_like(known)))
                for known in (self._offsets, self._worths, self._gains, self._losses)
            )
        self._offsets[self._count] = objective - float((worths * values).sum())
        self._worths[self._count] = worths
        np.maximum(worths, 0.0, out=self._gains[self._count])
        np.minimum(worths, 0.0, out=self._losses[self._count])
        self._count += 1

    def let(self, bounds: Bounds, limit: float) -> bool:
        """Return whether whole values within these bounds may be worth more than `limit`."""
        import numpy as np

        if not self._count or limit == -math.inf:
            return True
        least, most = np.array(bounds, dtype=np.double).reshape(-1, 2).T
        gained = np.einsum(_BY_CUT, self._gains[: self._count], most)
        lost = np.einsum(_BY_CUT, self._losses[: self._count], least)
        return self._exceed(gained + lost, limit)

    def let_units(self, units: Sequence[int], limit: float) -> bool:
        """Return whether these whole values may be worth more than `limit`."""
        import numpy as np

        if not self._count or limit == -math.inf:
            return True
        exact = np.array(units, dtype=np.double)
        return self._exceed(np.einsum(_BY_CUT, self._worths[: self._count], exact), limit)

    def _exceed(self, beyond: "np.ndarray", limit: float) -> bool:
        """Whether the least that the cuts let be is more than `limit`: their offsets, and what is beyond them."""
        highest = float((self._offsets[: self._count] + beyond).min())
        # What has no bound is no number here, and may be worth anything.
        return not highest <= limit + _ROUNDED * abs(limit)
