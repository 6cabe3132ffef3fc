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

    @property
    def scratch_s(self) -> float:
        """Return the seconds of an image by the heavy model from noise."""
        return self.heavy_steps * self.heavy_step_s


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


def throughput_ceiling(starts: Sequence[LogStart], costs: GenerationCosts) -> float:
    """Return the starts' throughput ÷ that of all from noise: N·n·h ÷ the sum of (N − K)·h over latents and
    misses and of (n' − k)·l over refined images."""
    return len(starts) * costs.scratch_s / sum(start.cost_s(costs) for start in starts)
