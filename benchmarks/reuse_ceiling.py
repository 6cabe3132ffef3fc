"""Compute the ceiling of a cache's savings from a log's hits.

The log is played in order against a cache without bounds that stores every image when it is finished, by the gateway's
tables and the cheapest start. No cache can find a request's images in flight: the newest ones, up to the number that
run concurrently. Costs are each model's measured seconds per step, so that a request's cost outside steps is spread
over them, and a hit is assumed to save its share of that too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pentimento.policies.cache_selection import Thresholds, allowed_steps

Vectors = npt.NDArray[np.float32]

# the gateway's default: an entry with that many ancestors is no donor
MOST_ANCESTORS = 5


@dataclass(frozen=True)
class GenerationCosts:
    """Hold steps of an image from noise, and measured seconds a step of the heavy model and of the light one that
    refines images."""

    heavy_steps: int
    light_steps: int
    heavy_step_s: float
    light_step_s: float


@dataclass(frozen=True)
class ReuseTables:
    """Set the least similarities for latents that heavy resumes (text to text) and images that light refines (text to
    image). An empty table disables its kind."""

    latents: Thresholds = ()
    images: Thresholds = ()


@dataclass(frozen=True)
class LogStart:
    """Store a request's start: `saved_steps` of the model are skipped; `donor` is its row, -1 for noise."""

    light: bool = False
    saved_steps: int = 0
    donor: int = -1

    def cost_s(self, costs: GenerationCosts) -> float:
        """Return the image's seconds from there."""
        if self.light:
            return (costs.light_steps - self.saved_steps) * costs.light_step_s
        return (costs.heavy_steps - self.saved_steps) * costs.heavy_step_s


FROM_NOISE = LogStart()


@dataclass
class _Replay:
    """Replay the log. `texts` and `images` are unit vectors (requests, dimensions); the newest `unseen` requests cannot
    be found."""

    texts: Vectors
    images: Vectors
    tables: ReuseTables
    costs: GenerationCosts
    unseen: int
    starts: list[LogStart] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)

    def add(self) -> None:
        row = len(self.starts)
        options = [FROM_NOISE, *self._latent(row), *self._image(row)]
        start = min(options, key=lambda option: option.cost_s(self.costs))
        self.starts.append(start)
        self.depths.append(0 if start.donor < 0 else self.depths[start.donor] + 1)

    def _latent(self, row: int) -> list[LogStart]:
        """Hits leave no latents."""
        kept = [before for before in range(max(0, row - self.unseen)) if self.starts[before].donor < 0]
        if not kept or not self.tables.latents:
            return []
        donor, similarity = nearest_of(kept, self.texts, self.texts[row])
        steps = allowed_steps(similarity, self.costs.heavy_steps, self.tables.latents)
        return [LogStart(False, steps, donor)] if steps else []

    def _image(self, row: int) -> list[LogStart]:
        kept = [before for before in range(max(0, row - self.unseen)) if self.depths[before] < MOST_ANCESTORS]
        if not kept or not self.tables.images:
            return []
        donor, similarity = nearest_of(kept, self.images, self.texts[row])
        steps = allowed_steps(similarity, self.costs.light_steps, self.tables.images)
        return [LogStart(True, steps, donor)] if steps else []


def nearest_of(rows: Sequence[int], vectors: Vectors, query: Vectors) -> tuple[int, float]:
    """Return the row with the vector nearest to the query, the first among equals, and their cosine."""
    cosines = vectors[list(rows)] @ query
    best = int(np.argmax(cosines))
    return rows[best], float(cosines[best])


def log_starts(
    texts: Vectors, images: Vectors, tables: ReuseTables, costs: GenerationCosts, unseen: int = 0
) -> list[LogStart]:
    """Return the start of every request of the log. The newest `unseen` are not in the cache yet, as if running
    concurrently."""
    replay = _Replay(texts, images, tables, costs, unseen)
    for _ in range(len(texts)):
        replay.add()
    return replay.starts


def donors_above(texts: Vectors, keys: Vectors, least_similarity: float) -> list[int]:
    """Return the row that answers each row: itself, if no stored key is near enough to its text.

    `keys` are the texts' vectors (PINECONE) or the images' (CRS), (rows, dimensions).
    """
    donors: list[int] = []
    for row in range(len(texts)):
        stored = [before for before in range(row) if donors[before] == before]
        cosines = keys[stored] @ texts[row]
        near = len(stored) > 0 and float(cosines.max()) >= least_similarity
        donors.append(stored[int(np.argmax(cosines))] if near else row)
    return donors


def donors_at_share(texts: Vectors, keys: Vectors, rows: Sequence[int], share: float) -> list[int]:
    """Return the donors under the lowest threshold at which at most `share` of `rows` are answered from the store."""
    nearest = [float((keys[:row] @ texts[row]).max()) for row in range(1, len(texts))]
    thresholds = sorted(set(nearest))
    low, high = 0, len(thresholds)
    while low < high:
        middle = (low + high) // 2
        if hit_share(donors_above(texts, keys, thresholds[middle]), rows) <= share:
            high = middle
        else:
            low = middle + 1
    # above any cosine if even the highest threshold answers too many
    return donors_above(texts, keys, thresholds[low] if low < len(thresholds) else 2.0)


def hit_share(donors: Sequence[int], rows: Sequence[int]) -> float:
    """Return the share of `rows` that get another row's image."""
    return sum(donors[row] != row for row in rows) / len(rows)
