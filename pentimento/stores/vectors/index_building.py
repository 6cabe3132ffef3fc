"""Decide when the embedded index is built again, and how: pure decisions and their numbers.

Entries written after the last build are compared vector by vector; the rest is found through a graph (HNSW; Malkov and
Yashunin, 2018). A build costs minutes of one core at 100,000 entries, so it waits until the part without a graph costs
more than it should. The shard keeps the vectors of deleted points, which only a build leaves behind: a small index is
rebuilt too, without a graph.
"""

from dataclasses import asdict, dataclass

from pentimento.domain.errors import InvalidArgument

_BYTES_PER_VALUE = 4
# A build writes the vectors twice: into the part that takes writes, and into the one with the graph.
_ROOM_FACTOR = 2.5


@dataclass(frozen=True)
class IndexBuilding:
    """Configure builds. Below `least_points_count` every search is exact, and as many changes make a build due.

    `unindexed_share` of the points, and never more than `most_unindexed_count`, may be without a graph. `edges_count`
    (HNSW's m) also counts the edges kept within a tenant, `candidates_count` its ef_construct,
    `search_candidates_count` its ef. With `yields` the builder runs only on an idle processor. A failed build is tried
    again after `first_retry_s`, doubled up to `max_retry_s`.
    """

    least_points_count: int = 10_000
    unindexed_share: float = 0.05
    most_unindexed_count: int = 20_000
    edges_count: int = 16
    candidates_count: int = 200
    search_candidates_count: int = 96
    threads_count: int = 1
    yields: bool = True
    timeout_s: float = 6 * 3600.0
    first_retry_s: float = 60.0
    max_retry_s: float = 3600.0

    def __post_init__(self) -> None:
        if not 0 < self.unindexed_share <= 1:
            raise InvalidArgument.of("unindexed_share", f"must be above 0 and at most 1, got {self.unindexed_share}")
        for name in ("least_points_count", "most_unindexed_count", "threads_count", "search_candidates_count"):
            if getattr(self, name) < 1:
                raise InvalidArgument.of(name, f"must be at least 1, got {getattr(self, name)}")
        if not 4 <= self.edges_count <= 128 or self.candidates_count < self.edges_count:
            raise InvalidArgument.of("edges_count", "must be between 4 and 128 and at most candidates_count")

    def shape(self) -> dict[str, int]:
        """Return the parameters of the graph for the process that builds, as JSON values."""
        wanted = ("edges_count", "candidates_count", "threads_count")
        return {name: value for name, value in asdict(self).items() if name in wanted}


# For a process that opens an index while another one serves and builds it.
NO_BUILD = IndexBuilding(least_points_count=2**62)


@dataclass(frozen=True)
class IndexCounts:
    """Count the points that the index holds, and those written or deleted since its last build."""

    points_count: int
    changed_count: int


def build_is_due(counts: IndexCounts, building: IndexBuilding) -> bool:
    """Return whether so much changed since the last build that another one pays."""
    if counts.points_count < building.least_points_count:
        return counts.changed_count >= building.least_points_count
    allowed = min(building.unindexed_share * counts.points_count, building.most_unindexed_count)
    return counts.changed_count >= max(1.0, allowed)


def retry_delay_s(failures_count: int, building: IndexBuilding) -> float:
    """Return how long to wait after that many failed builds in a row, in seconds; 0 after none."""
    if failures_count == 0:
        return 0.0
    # The exponent is bounded: a float overflows after a thousand failures.
    return min(building.first_retry_s * 2.0 ** min(failures_count - 1, 64), building.max_retry_s)


def needed_room_bytes(points_count: int, text: int, image: int | None = None) -> int:
    """Return the free bytes that a build should find: it is not begun without them. `text` and `image` count the
    dimensions of each space, None: the same."""
    both_spaces = (text + (text if image is None else image)) * _BYTES_PER_VALUE
    return round(_ROOM_FACTOR * points_count * both_spaces)
