"""Quality that images kept of the heavy model's, summed over comparisons of two images of one request."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class KeptQuality:
    """`count` images, and the sums of the shares of the heavy model's quality that they kept and of their squares."""

    count: int = 0
    kept: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, share: float) -> "KeptQuality":
        """Return the comparison of one image that kept that share."""
        return cls(1, share, share * share)

    def __add__(self, other: "KeptQuality") -> "KeptQuality":
        return KeptQuality(self.count + other.count, self.kept + other.kept, self.squares + other.squares)


NOTHING_KEPT = KeptQuality()
# The largest share that one comparison can show: a score near 0 would make any image look far better.
MOST_KEPT = 2.0


def added_up(compared: Iterable[tuple[KeptQuality, ...]]) -> tuple[KeptQuality, ...]:
    """Return the sums by equal parts of confidence; those without any parts say nothing."""
    return tuple(sum(parts, NOTHING_KEPT) for parts in zip(*(one for one in compared if one), strict=True))


def kept_share(quality: float, best: float) -> float | None:
    """Return the share of the heavy model's score that an image kept; None where the score is no measure of quality."""
    return min(max(quality, 0.0) / best, MOST_KEPT) if best > 0.0 else None
